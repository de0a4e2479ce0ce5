"""Choose cases to rerun: representatives of each cause, and all cases of a cause in doubt."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from harness.verdicts.comparison import DIFFERS, Comparison
from harness.verdicts.finding import Finding
from harness.verdicts.groups import Group, causes, representatives
from harness.verdicts.words import Verdict


def chosen(first: Comparison, most: int, *, every_cause: bool = False) -> list[str]:
    """Return at most ``most`` cases of each cause, and all that are known to be flaky.

    What expectations declare has been seen before, so one more run of it would show nothing new: it
    is chosen only with ``every_cause``.
    """
    keys = []
    for group in causes(first.of(*DIFFERS) if every_cause else first.in_question):
        all_of_it = group.verdict == Verdict.FLAKY
        members = group.members if all_of_it else representatives(group.members, most)
        keys += [case.key for case in members]
    return keys


def in_doubt(first: Comparison, again: Comparison, rerun: Collection[str]) -> list[str]:
    """Return the cases, not rerun yet, of each cause of which a rerun case proved flaky."""
    now = {case.key: case.verdict for case in again.findings}
    return [
        case.key
        for group in causes(first.of(*DIFFERS))
        if not _agree(group, now, rerun)
        for case in group.members
        if case.key not in rerun
    ]


def with_basis(first: Comparison, again: Comparison, rerun: Collection[str]) -> Comparison:
    """``again`` with the cases on whose reruns the verdict of each rests.

    Nothing is said of a case that was not rerun itself and whose cause has no rerun case, or one
    that proved flaky.
    """
    now = {case.key: case.verdict for case in again.findings}
    rests: dict[str, tuple[str, ...]] = {}
    for group in causes(first.of(*DIFFERS)):
        keys = tuple(case.key for case in group.members if case.key in rerun)
        for case in group.members:
            if case.key in rerun:
                rests[case.key] = (case.key,)
            elif _agree(group, now, rerun):
                rests[case.key] = keys
    return replace(again, findings=tuple(_resting(case, rests) for case in again.findings))


def _agree(group: Group, now: dict[str, Verdict], rerun: Collection[str]) -> bool:
    """Return whether every rerun case of a cause still has the cause's verdict."""
    return all(now[f.key] == group.verdict for f in group.members if f.key in rerun)


def _resting(case: Finding, rests: dict[str, tuple[str, ...]]) -> Finding:
    return replace(case, rerun_cases=rests.get(case.key, ()))
