"""``xla-harness collect``: a night's cells into a history, also those that died."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from harness.commands.parsers import Commands, names, time_of
from harness.commands.plan import add_cell_options, with_wheels
from harness.commands.query import tell
from harness.errors import BadInputError
from harness.matrix.plan import Planned, cells
from harness.results.history_store import History, Recorded
from harness.results.junit_run import Run, Said, joined, read_run
from harness.results.lost import Lost, completed, known_cases
from harness.results.printable import printable
from harness.stacks.catalogue import FOLDER, Catalogue
from harness.stacks.stack import Stack

_GONE = (
    "no report and no log: its job was cancelled, ran out of time, lost its runner or ended "
    "before the suites"
)


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "collect", help="add a night's cells to a history; what a dead cell lost is recorded too"
    )
    parser.add_argument("reports", type=Path, metavar="DIR", help="with the cells' files below it")
    parser.add_argument("--night", required=True, metavar="JSON", help="what plan night printed")
    add_cell_options(parser)
    parser.add_argument("--history", required=True, metavar="DIR", help="a folder, or an address")
    parser.add_argument("--time", required=True, metavar="ISO", help="of the night's start")
    parser.add_argument("--commit", default="", help="of what was run")
    parser.add_argument(
        "--folder", type=Path, default=FOLDER, help=f"of stacks (default: {FOLDER})"
    )
    parser.set_defaults(run=_run)
    parser.epilog = (
        "The exit code is 0 also when cells were lost: the verdicts say what that means."
    )


def _run(options: argparse.Namespace) -> int:
    catalogue, history = Catalogue(options.folder), History(options.history)
    said = Said(commit=options.commit, time=time_of(options.time))
    night = []
    for name, wheels in _night(options.night):
        stack = catalogue.find(name)
        stack = with_wheels(stack) if wheels else stack
        planned = cells(stack, names(options.lanes), options.shard)
        night.append((stack, *_read(stack, planned, options.reports, said)))
    _tell(history.add([run for _, run, lost in night if run is not None and not lost]))
    # Now the history knows what tonight's whole stacks ran, should a lost one be new.
    _tell(history.add([_whole(*each, history, said) for each in night if each[2]]))
    tell(history)
    return 0


def _read(
    stack: Stack, planned: Sequence[Planned], folder: Path, said: Said
) -> tuple[Run | None, list[Lost]]:
    """What the stack's cells left, and the cells that left nothing to read."""
    found: list[Run] = []
    lost: list[Lost] = []
    for cell in planned:
        try:
            found.append(read_run(_report(folder, stack, cell), said))
        except BadInputError as error:
            lost.append(Lost(cell.lane, cell.shard, str(error)))
            print(f"lost: {stack.name} {cell.lane} {cell.shard}: {printable(str(error))}")
    return joined(found) if found else None, lost


def _whole(
    stack: Stack, run: Run | None, lost: Sequence[Lost], history: History, said: Said
) -> Run:
    lanes = {each.lane for each in lost}
    known = {}
    if history.files.listed().places:
        known = history.ask(
            lambda connection: {lane: known_cases(connection, stack.name, lane) for lane in lanes}
        )
    return completed(run, stack.name, said, lost, known)


def _tell(runs: Sequence[Recorded]) -> None:
    for run in runs:
        print(f"{run.run}  {run.added:<8}  {run.cases:>6} cases  {printable(run.stack)}")


def _report(folder: Path, stack: Stack, cell: Planned) -> Path:
    """The cell's report. Raises BadInputError with why there is none."""
    number, _, count = cell.shard.partition("/")
    stem = f"{stack.slug}/{cell.lane}-{number}of{count}"
    for path in sorted(folder.rglob(f"{stem}.xml")):
        return path
    for path in sorted(folder.rglob(f"{stem}.died")):
        raise BadInputError(path.read_text(encoding="utf-8", errors="replace").strip())
    raise BadInputError(_GONE)


def _night(text: str) -> list[tuple[str, str]]:
    try:
        data = json.loads(text)
        return [(str(entry["stack"]), str(entry["wheels"])) for entry in data]
    except (ValueError, TypeError, KeyError) as error:
        raise BadInputError(
            f"--night: expected the stacks that `xla-harness plan night` printed: {error!r}"
        ) from error
