"""Results of a night's cells in a folder: for each a report, or why there is none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from harness.errors import BadInputError
from harness.history.run import Run
from harness.junit.properties import VERSIONS
from harness.matrix.lost import Lost
from harness.matrix.plan import Planned
from harness.stacks.stack import Stack

_GONE = (
    "no report and no log: its job was cancelled, ran out of time, lost its runner or ended "
    "before the suites"
)
_KINDS = (".xml", ".died")


class Cells:
    """The folder with the cells' files: a folder of each artifact's name, or all in one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known = set[Path]()

    def report(self, stack: Stack, cell: Planned) -> Path:
        """Return the cell's report, from where the cell has put it.

        Raises BadInputError with the reason if there is none, or if there are several.
        """
        number, _, count = cell.shard.partition("/")
        name = f"{cell.lane}-{number}of{count}"
        homes = (self._folder, self._folder / cell.artifact)
        paths = [home / stack.slug / f"{name}{kind}" for home in homes for kind in _KINDS]
        existing = [path for path in paths if path.exists()]
        self._known.update(existing)
        if len(existing) > 1:
            raise BadInputError(f"expected one answer, found {', '.join(map(str, existing))}")
        if not existing:
            raise BadInputError(_GONE)
        (path,) = existing
        if path.suffix == ".died":
            raise BadInputError(path.read_text(encoding="utf-8", errors="replace").strip() or _GONE)
        return path

    def strays(self) -> list[str]:
        """Return reports that belong to no planned cell, or are in another cell's artifact.

        A cell can't speak for another one, so they don't count.
        """
        every = {path for path in self._folder.rglob("*.xml") if not path.name.startswith(".")}
        return [
            f"{path}: expected the report of a planned cell, in the artifact of that cell"
            for path in sorted(every - self._known)
        ]


def agreeing(cells: Sequence[tuple[Planned, Run]]) -> tuple[list[Run], list[Lost]]:
    """Return the runs with the versions that most cells have, and the other cells, as lost.

    A run has one set of versions: other versions would look like a change.
    """
    if not cells:
        return [], []
    counts = Counter(_versions(run) for _, run in cells)
    usual = counts.most_common(1)[0][0]  # of equal counts the first planned
    lost = []
    for cell, run in cells:
        versions = _versions(run)
        differing = zip(VERSIONS, usual, versions, strict=True)
        causes = [
            f"{name}: expected {was!r}, as in {counts[usual]} of {len(cells)} cells, found {is_!r}"
            for name, was, is_ in differing
            if was != is_
        ]
        if causes:
            lost.append(Lost(cell.lane, cell.shard, "; ".join(causes)))
    return [run for _, run in cells if _versions(run) == usual], lost


def _versions(run: Run) -> tuple[str, ...]:
    return tuple(run.versions[name] for name in VERSIONS)
