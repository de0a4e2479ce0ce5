"""The quick cases before all others: what they say of two stacks is known in a minute or two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.frameworks import FRAMEWORKS
from harness.junit.report import Report
from harness.matrix.cell import Cell

QUICK, REST = "quick", "rest"  # the parts of a lane's cases


def divided(cells: Sequence[Cell], lane: str, cases: tuple[str, ...]) -> list[Cell]:
    """Split each cell of ``lane`` in two: one for those cases in their order, one for the rest.

    Nothing is split if the stacks have different frameworks: a case then has another id on each.
    """
    frameworks = {frozenset(FRAMEWORKS.keys() & cell.stack.pins.keys()) for cell in cells}
    if not cases or len(frameworks) > 1:
        return list(cells)
    made = []
    for cell in cells:
        if cell.lane == lane:
            made.append(replace(cell, cases=cases, part=QUICK))
            made.append(replace(cell, unless_cases=cases, first=(), part=REST))
        else:
            made.append(cell)
    return made


def joined(cells: Sequence[Cell]) -> list[Report]:
    """Return the reports of one stack's cells, with the parts of a lane's cases joined.

    What was left out, and why, comes from the part without the quick cases: it collects all.
    """
    quick = {cell.lane: cell.read() for cell in cells if cell.part == QUICK}
    others = [(cell.lane, cell.read()) for cell in cells if cell.part != QUICK]
    reports = [_with(rest, quick[lane]) if lane in quick else rest for lane, rest in others]
    lanes = {lane for lane, _ in others}
    return [*reports, *(report for lane, report in quick.items() if lane not in lanes)]


def _with(rest: Report, quick: Report) -> Report:
    results = {**quick.results, **rest.results}
    return replace(rest, results=results, faults=(*quick.faults, *rest.faults))
