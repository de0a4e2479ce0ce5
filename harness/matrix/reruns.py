"""What is rerun of what differs: representatives of each cause, and all of a cause in doubt."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from harness.verdicts.findings import DIFFERS, Comparison, Finding
from harness.verdicts.groups import Group, causes, representatives
from harness.verdicts.words import Verdict


def chosen(first: Comparison, most: int) -> list[str]:
    """The keys of at most ``most`` cases of each cause, and of all that are known to be flaky."""
    keys = []
    for group in causes(first.of(*DIFFERS)):
        all_of_it = group.verdict == Verdict.FLAKY
        members = group.members if all_of_it else representatives(group.members, most)
        keys += [finding.key for finding in members]
    return keys


def in_doubt(first: Comparison, again: Comparison, rerun: Collection[str]) -> list[str]:
    """The cases not rerun yet of each cause one of whose rerun cases proved flaky."""
    now = {finding.key: finding.verdict for finding in again.findings}
    return [
        finding.key
        for group in causes(first.of(*DIFFERS))
        if not _agree(group, now, rerun)
        for finding in group.members
        if finding.key not in rerun
    ]


def with_basis(first: Comparison, again: Comparison, rerun: Collection[str]) -> Comparison:
    """``again`` with the cases on whose reruns each finding rests.

    Nothing is said of a case that was not rerun itself and whose cause has no rerun case, or one
    that proved flaky.
    """
    now = {finding.key: finding.verdict for finding in again.findings}
    rests: dict[str, tuple[str, ...]] = {}
    for group in causes(first.of(*DIFFERS)):
        keys = tuple(finding.key for finding in group.members if finding.key in rerun)
        for finding in group.members:
            if finding.key in rerun:
                rests[finding.key] = (finding.key,)
            elif _agree(group, now, rerun):
                rests[finding.key] = keys
    return replace(again, findings=tuple(_resting(finding, rests) for finding in again.findings))


def _agree(group: Group[Finding], now: dict[str, Verdict], rerun: Collection[str]) -> bool:
    """Whether every rerun case of a cause still has the cause's verdict."""
    return all(now[f.key] == group.verdict for f in group.members if f.key in rerun)


def _resting(finding: Finding, rests: dict[str, tuple[str, ...]]) -> Finding:
    return replace(finding, rerun_cases=rests.get(finding.key, ()))
