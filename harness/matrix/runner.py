"""Runs cells, or chosen cases on any stack."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.junit.report import Report
from harness.junit.result import Result
from harness.matrix import pool
from harness.matrix.cell import Cell, Question
from harness.stacks.environments import Environments
from harness.stacks.stack import Stack


@dataclass(frozen=True)
class Runner:
    """Runner of cells, with the folder below which chosen cases run."""

    environments: Environments
    out: Path
    arguments: tuple[str, ...]
    say: pool.Say
    jobs: int = 0
    fresh: bool = False

    def run(self, cells: Sequence[Cell]) -> pool.Done:
        """Run the cells that are not answered yet, or with ``fresh`` all."""
        return pool.run(cells, self.environments, jobs=self.jobs, fresh=self.fresh, say=self.say)

    def finish(self, cells: Sequence[Cell]) -> None:
        """Run the cells. Raises BadInputError, naming them, if some have no answer."""
        self.run(cells).check()

    def has_answer(self, cell: Cell) -> bool:
        """Return whether the cell was run in full before."""
        return not self.fresh and cell.answers(self._question(cell))

    def runs_few(self, cell: Cell) -> bool:
        """Return whether only edited test files of the cell are left to run, or nothing."""
        if self.fresh:
            return False
        question = self._question(cell)
        return cell.answers(question) or bool(cell.changed(question))

    def _question(self, cell: Cell) -> Question:
        return cell.asks(self.environments.create(cell.stack, self.say))

    def reports(
        self, stacks: Iterable[Stack], cases: Sequence[Result], folders: Sequence[str]
    ) -> dict[str, list[Report]]:
        """Run the cases; return each stack's reports, one of each lane for each of the folders.

        A case is run on the lane that it ran on before. All runs share the cores. A run without
        an answer is named, and has no report.
        """
        names = sorted({result.lane for result in cases})
        lanes = {lane: tuple(r.id for r in cases if r.lane == lane) for lane in names}
        wanted = list(stacks)
        cells = [
            Cell(stack, lane, self.out / folder / stack.slug, self.arguments, ids, label=folder)
            for folder in folders
            for stack in wanted
            for lane, ids in lanes.items()
        ]
        done = self.run(cells)
        by_stack: dict[str, list[Report]] = {stack.name: [] for stack in wanted}
        for cell in done.finished:
            by_stack[cell.stack.name].append(cell.read())
        return by_stack
