"""Chosen cases on any stack."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.junit.report import Report, Result
from harness.matrix import run
from harness.matrix.cell import Cell
from harness.stacks.environments import Environments
from harness.stacks.stack import Stack


@dataclass(frozen=True)
class Runner:
    """Runs chosen cases on any stack, into folders below ``out``."""

    environments: Environments
    out: Path
    arguments: tuple[str, ...]
    say: run.Say
    jobs: int = 0
    fresh: bool = False

    def reports(
        self, stacks: Iterable[Stack], cases: Sequence[Result], folders: Sequence[str]
    ) -> dict[str, list[Report]]:
        """Each stack's reports of those cases, one of each lane for each of the folders.

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
        done = run.run(cells, self.environments, jobs=self.jobs, fresh=self.fresh, say=self.say)
        found: dict[str, list[Report]] = {stack.name: [] for stack in wanted}
        for cell in done.finished:
            found[cell.stack.name].append(cell.read())
        return found
