"""A qualification, step by step: the verdict first, then what reruns and swapped stacks add."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from harness.junit.report import Report, Result
from harness.lanes import LANES
from harness.matrix import reruns
from harness.matrix.runner import Runner
from harness.matrix.swaps import attribute, to_attribute
from harness.stacks.stack import Stack
from harness.verdicts.compare import compare, without_runs_on_base
from harness.verdicts.comparison import ComparedCase, Comparison, Open
from harness.verdicts.groups import Group
from harness.verdicts.upstream import Row

# Representatives of each cause; then all cases of each cause one of whose representatives is flaky.
_ROUNDS = ("rerun", "rerun-all")


@dataclass(frozen=True)
class Sides:
    """Base and candidate, each with its reports and, unless those were given, its stack."""

    reports: Sequence[Sequence[Report]]
    stacks: Sequence[Stack | None]
    rows: tuple[Row, ...] = ()
    settled: frozenset[str] = frozenset()  # keys of what was left out on the base

    def compare(self, again: Sequence[Sequence[Report]] = ((), ())) -> Comparison:
        """The comparison of the reports, and of those of reruns."""
        (base, candidate), (base_again, candidate_again) = self.reports, again
        compared = compare(base, candidate, base_again, candidate_again, self.rows)
        compared = without_runs_on_base(compared, self.settled)
        return replace(compared, not_asked=not_asked(compared))

    @property
    def runnable(self) -> list[Stack]:
        """The sides that can be run again."""
        return [stack for stack in self.stacks if stack]

    def rerun(self, again: Sequence[Sequence[Report]]) -> set[str]:
        """The keys of the cases that a rerun measured on each side that can be run."""
        compared = self.compare(again)
        runs = [{id(r) for report in reports for r in report.results.values()} for reports in again]
        measured = [
            {key for key, of in side.runs.items() if any(r.measured and id(r) in own for r in of)}
            for side, own, stack in zip(
                (compared.base, compared.candidate), runs, self.stacks, strict=True
            )
            if stack
        ]
        return set.intersection(*measured) if measured else set()


def not_asked(compared: Comparison) -> tuple[str, ...]:
    """Return the lanes that both stacks have the packages for and that measured no case.

    The hardware's lane is among them: whether there is hardware somewhere, nobody here knows.
    """
    packages = compared.base.versions.keys() & compared.candidate.versions.keys()
    return tuple(
        lane.name
        for lane in LANES.own()
        if lane.name not in compared.lanes and packages >= set(lane.needs)
    )


@dataclass(frozen=True)
class Effort:
    """How much is done after the first verdict."""

    reruns: int = 1  # of each chosen case
    representatives: int = 3  # of each cause
    attribution: bool = True
    every_cause: bool = False  # rerun what expectations declare, too


def steps(sides: Sides, runner: Runner, effort: Effort) -> Iterator[Comparison]:
    """The comparison as the first runs have it, then again each time that more is known.

    ``Comparison.open`` says what is still to come, and is false in the last one only.
    """
    first = found = sides.compare()
    keys = list[str]()
    if effort.reruns and sides.runnable:
        keys = reruns.chosen(first, effort.representatives, every_cause=effort.every_cause)
    yield _opened(found, sides, effort, keys)
    again: list[list[Report]] = [[], []]
    for name in _ROUNDS:
        if not keys:
            continue
        runner.say(f"{name}: {len(keys)} cases, {effort.reruns} times on {_names(sides)}")
        folders = [f"{name}-{number}" for number in range(1, effort.reruns + 1)]
        made = runner.reports(sides.runnable, _results(first, keys), folders)
        for reports, stack in zip(again, sides.stacks, strict=True):
            reports.extend(made[stack.name] if stack else [])
        compared, rerun = sides.compare(again), sides.rerun(again)
        found = reruns.with_basis(first, compared, rerun)
        last = name == _ROUNDS[-1]
        keys = [] if last else reruns.in_doubt(first, compared, rerun)
        yield _opened(found, sides, effort, keys)
    if causes := _causes(found, sides, effort):
        base, candidate = sides.runnable
        runner.say(f"attribution: {len(causes)} causes")
        yield replace(attribute(found, base, candidate, runner), open=Open())


def _opened(found: Comparison, sides: Sides, effort: Effort, keys: Sequence[str]) -> Comparison:
    causes = len(_causes(found, sides, effort))
    return replace(found, open=Open(reruns=len(keys), attributions=causes))


def _causes(found: Comparison, sides: Sides, effort: Effort) -> Sequence[Group[ComparedCase]]:
    """Those that will be attributed, which takes two stacks to swap components between."""
    if not effort.attribution or len(sides.runnable) < len(sides.stacks):
        return ()
    return to_attribute(found, *sides.runnable)


def _results(comparison: Comparison, keys: Sequence[str]) -> list[Result]:
    """One result of each case, of each side's own where the two have other ids."""
    sides = (comparison.base, comparison.candidate)
    found = {r.id: r for key in keys for side in sides for r in side.runs.get(key, ())[:1]}
    return list(found.values())


def _names(sides: Sides) -> str:
    return " and ".join(stack.name for stack in sides.runnable)
