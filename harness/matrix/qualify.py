"""A qualification, step by step: the verdict first, then what reruns and swapped stacks add."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from harness.expectations import Expectations
from harness.junit.report import Report
from harness.junit.result import Result
from harness.matrix import reruns
from harness.matrix.cell import Cell
from harness.matrix.decisive import decisive, settled
from harness.matrix.quick import QUICK, joined
from harness.matrix.runner import Runner
from harness.matrix.sides import Sides
from harness.matrix.swaps import attribute, to_attribute
from harness.stacks.stack import Stack
from harness.verdicts.comparison import Comparison, Open
from harness.verdicts.groups import Group
from harness.verdicts.upstream import Row

# Representatives of each cause; then all cases of each cause one of whose representatives is flaky.
_ROUNDS = ("rerun", "rerun-all")


@dataclass(frozen=True)
class Qualification:
    """Input of a comparison: on each side the given reports, or else a stack and its cells."""

    given: Sequence[Sequence[Report]]
    stacks: Sequence[Stack | None]
    cells: Sequence[Cell]
    rows: tuple[Row, ...]
    on_base: Expectations | None  # what is expected on the base, in a project that declares it
    settled: frozenset[str] = frozenset()  # keys of cases that need not run on the base

    def sides(self, cells: Sequence[Cell]) -> Sides:
        """Return both sides, from the reports that were given and those of these cells."""
        reports = [
            reports or joined([cell for cell in cells if cell.stack == stack])
            for reports, stack in zip(self.given, self.stacks, strict=True)
        ]
        return Sides(reports, self.stacks, self.rows, self.settled)


@dataclass(frozen=True)
class Effort:
    """Effort to spend after the first verdict."""

    reruns: int = 1  # of each chosen case
    representatives: int = 3  # of each cause
    attribution: bool = True
    every_case: bool = False  # also what is expected: run it on the base, and rerun it


def folder_of(compared: Comparison) -> str:
    """Return the name of the folder for what a qualification leaves."""
    return f"{compared.base.name}..{compared.candidate.name}"


def comparisons(
    qualification: Qualification, runner: Runner, effort: Effort
) -> Iterator[Comparison]:
    """Run the cells; yield the comparison of the quick cases, then that of all, step by step.

    Raises BadInputError, naming the cells, if some have no answer.
    """
    quick = [cell for cell in qualification.cells if cell.part == QUICK]
    rest = [cell for cell in qualification.cells if cell.part != QUICK]
    runner.finish(quick)
    if quick:
        yield replace(qualification.sides(quick).compare(), open=Open(cases=True))
    if effort.every_case or qualification.on_base is None or not quick:
        runner.finish(rest)
    else:
        qualification = _candidate_first(qualification, quick, rest, qualification.on_base, runner)
    sides = qualification.sides(qualification.cells)
    yield from steps(sides, replace(runner, out=runner.out / folder_of(sides.compare())), effort)


def _candidate_first(
    qualification: Qualification,
    quick: Sequence[Cell],
    rest: Sequence[Cell],
    on_base: Expectations,
    runner: Runner,
) -> Qualification:
    """Run all cases, the candidate's first: its results say which the base need not run."""
    base, candidate = qualification.stacks
    shortened = [cell for cell in rest if cell.stack == base and not runner.has_answer(cell)]
    whole = [cell for cell in rest if cell not in shortened]
    _finish_in_turn(whole, runner)
    lanes = {cell.lane for cell in shortened}
    alike = [
        result
        for report in joined([cell for cell in whole if cell.stack == candidate])
        for result in settled(report, on_base)
        if result.lane in lanes
    ]
    shortened = decisive(shortened, alike)
    _finish_in_turn(shortened, runner)
    keys = frozenset(result.key for result in alike)
    return replace(qualification, cells=[*quick, *whole, *shortened], settled=keys)


def _finish_in_turn(cells: Sequence[Cell], runner: Runner) -> None:
    """Run the cells one after the other, each on all cores: nearly all cases are one cell's.

    Cells that run edited files only are small, and side by side they end sooner.
    """
    small = [cell for cell in cells if runner.runs_few(cell)]
    runner.finish(small)
    for cell in cells:
        if cell not in small:
            runner.finish([cell])


def steps(sides: Sides, runner: Runner, effort: Effort) -> Iterator[Comparison]:
    """Yield the comparison after the first runs, then each time that more is known.

    ``Comparison.open`` has what is still to come, and is false only in the last one.
    """
    first = comparison = sides.compare()
    keys = list[str]()
    if effort.reruns and sides.runnable:
        keys = reruns.chosen(first, effort.representatives, every_cause=effort.every_case)
    yield _opened(comparison, sides, effort, keys)
    again: list[list[Report]] = [[], []]
    for name in _ROUNDS:
        if not keys:
            continue
        cases = f"{len(keys)} case{'s' * (len(keys) > 1)}"
        times = f"{effort.reruns} time{'s' * (effort.reruns > 1)}"
        runner.say(f"{name}: {cases}, {times} on {_names(sides)}")
        folders = [f"{name}-{number}" for number in range(1, effort.reruns + 1)]
        made = runner.reports(sides.runnable, results_of(first, keys), folders)
        for reports, stack in zip(again, sides.stacks, strict=True):
            reports.extend(made[stack.name] if stack else [])
        compared, rerun = sides.compare(again), sides.rerun(again)
        comparison = reruns.with_basis(first, compared, rerun)
        last = name == _ROUNDS[-1]
        keys = [] if last else reruns.in_doubt(first, compared, rerun)
        yield _opened(comparison, sides, effort, keys)
    if causes := _causes(comparison, sides, effort):
        base, candidate = sides.runnable
        runner.say(f"attribution: {len(causes)} cause{'s' * (len(causes) > 1)}")
        yield replace(attribute(comparison, base, candidate, runner), open=Open())


def _opened(
    comparison: Comparison, sides: Sides, effort: Effort, keys: Sequence[str]
) -> Comparison:
    causes = len(_causes(comparison, sides, effort))
    return replace(comparison, open=Open(reruns=len(keys), attributions=causes))


def _causes(comparison: Comparison, sides: Sides, effort: Effort) -> Sequence[Group]:
    """Return the causes to attribute; that requires two stacks to swap components between."""
    if not effort.attribution or len(sides.runnable) < len(sides.stacks):
        return ()
    return to_attribute(comparison, *sides.runnable)


def results_of(comparison: Comparison, keys: Sequence[str]) -> list[Result]:
    """Return one result for each case and lane, or one for each side where the ids differ."""
    sides = (comparison.base, comparison.candidate)
    runs = [r for key in keys for side in sides for r in side.runs.get(key, ())[:1]]
    return list({(r.lane, r.id): r for r in runs}.values())


def _names(sides: Sides) -> str:
    return " and ".join(stack.name for stack in sides.runnable)
