"""The two sides of a qualification: base and candidate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.junit.report import Report
from harness.lanes import LANES, has_needed
from harness.stacks.stack import Stack
from harness.verdicts.compare import compare, without_runs_on_base
from harness.verdicts.comparison import Comparison
from harness.verdicts.upstream import Row


@dataclass(frozen=True)
class Sides:
    """Base and candidate, each with its reports and, unless those were given, its stack."""

    reports: Sequence[Sequence[Report]]
    stacks: Sequence[Stack | None]
    rows: tuple[Row, ...] = ()
    settled: frozenset[str] = frozenset()  # keys of what was left out on the base

    def compare(self, again: Sequence[Sequence[Report]] = ((), ())) -> Comparison:
        """Compare the reports, together with those of reruns."""
        (base, candidate), (base_again, candidate_again) = self.reports, again
        compared = compare(base, candidate, base_again, candidate_again, self.rows)
        compared = without_runs_on_base(compared, self.settled)
        return replace(compared, not_asked=not_asked(compared))

    @property
    def runnable(self) -> list[Stack]:
        """The sides that can be run again."""
        return [stack for stack in self.stacks if stack]

    def rerun(self, again: Sequence[Sequence[Report]]) -> set[str]:
        """Return the keys of the cases that a rerun measured on each side that can be run."""
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
        if lane.name not in compared.lanes and has_needed(packages, lane)
    )
