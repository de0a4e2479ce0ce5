"""What of the base can be left out: the cases whose answer there can't speak against moving."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.expectations import Expectations
from harness.junit.report import Report, Result
from harness.matrix.cell import Cell
from harness.verdicts.costs import has_costs

DECISIVE = "decisive"  # the part of a lane's cases that the base is asked


def settled(candidate: Report, on_base: Expectations) -> list[Result]:
    """The candidate's results that no answer of the base makes a regression or a missing case.

    They work, no expectation says that they are broken on the base, which would make them fixed,
    and there is nothing in them to compare in numbers, as the calls of a step on the host.
    """
    return [
        result
        for result in candidate.results.values()
        if result.works and not has_costs(result) and on_base.find(result.id) is None
    ]


def decisive(cells: Sequence[Cell], left_out: Sequence[Result]) -> list[Cell]:
    """The base's cells without those cases."""
    found = []
    for cell in cells:
        ids = {result.id for result in left_out if result.lane == cell.lane}
        unless = tuple(sorted({*cell.unless_cases, *ids}))
        found.append(replace(cell, unless_cases=unless, part=DECISIVE))
    return found
