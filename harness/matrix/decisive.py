"""Leave out the cases that need not run on the base, since the same answer is expected there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.expectations import Expectation, Expectations
from harness.junit.report import Report
from harness.junit.result import Result
from harness.matrix.cell import Cell
from harness.model.outcome import Answer
from harness.verdicts.costs import has_costs
from harness.verdicts.differences import compares_on_base

DECISIVE = "decisive"  # the part of a lane's cases that the base is asked


def settled(candidate: Report, on_base: Expectations) -> list[Result]:
    """Return the candidate's results for which the base is expected to give the same answer.

    They work, and no expectation declares a failure on the base; or they fail as an expectation
    declares, and one declares the same cause on the base. They have nothing to compare, such as the
    calls of a step on the host, or what libtpu compiled.
    """
    return [
        result
        for result in candidate.results.values()
        if not has_costs(result)
        and not compares_on_base(result)
        and _is_alike(result, on_base.find(result.id))
    ]


def _is_alike(result: Result, on_base: Expectation | None) -> bool:
    if on_base is None:
        return result.works
    return result.outcome.answer is Answer.EXPECTED and result.expectation == on_base.cause


def decisive(cells: Sequence[Cell], left_out: Sequence[Result]) -> list[Cell]:
    """Return the base's cells without those cases."""
    shortened = []
    for cell in cells:
        ids = {result.id for result in left_out if result.lane == cell.lane}
        unless = tuple(sorted({*cell.unless_cases, *ids}))
        shortened.append(replace(cell, unless_cases=unless, part=DECISIVE))
    return shortened
