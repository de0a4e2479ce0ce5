"""``xla-harness ci collect``: add the cells of a night to a history, also those that died."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.commands import project
from harness.commands.output import show
from harness.commands.parsers import add_folder, names
from harness.commands.partial import told
from harness.commands.plan import add_cell_options, with_wheels
from harness.commands.query import name_set_aside
from harness.errors import BadInputError
from harness.history.run import Run, RunMetadata, joined, parse_time, read_run
from harness.matrix.cells import Cells, agreeing
from harness.matrix.lost import Lost, completed, known_cases
from harness.matrix.plan import Planned, cells
from harness.printable import printable
from harness.stacks.stack import Stack

if TYPE_CHECKING:
    from harness.history.store import History, RecordedRun


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("reports", type=Path, metavar="DIR", help="with the cells' files below it")
    parser.add_argument("--night", required=True, metavar="JSON", help="what plan night printed")
    add_cell_options(parser)
    parser.add_argument("--history", required=True, metavar="DIR", help="a folder, or an address")
    parser.add_argument("--time", required=True, metavar="ISO", help="of the night's start")
    parser.add_argument("--commit", default="", help="of what was run")
    add_folder(parser)
    parser.set_defaults(run=_run)
    parser.epilog = (
        "The exit code is 3 when cells were lost or something can't be read: all else is recorded, "
        "and the verdicts say what was lost."
    )


@dataclass(frozen=True)
class _Tonight:
    """Cells of one stack: a run of those that can be read, and those that are lost."""

    stack: Stack
    run: Run | None
    lost: tuple[Lost, ...]


def _run(options: argparse.Namespace) -> int:
    from harness.history.store import History

    history = History(options.history)
    metadata = RunMetadata(commit=options.commit, time=parse_time(options.time, "--time"))
    planned = _planned(options)
    left = Cells(options.reports)
    night = [_read(stack, each, left, metadata, wheels=wheels) for stack, wheels, each in planned]
    _tell(history.add([each.run for each in night if each.run is not None and not each.lost]))
    # Now the history knows what tonight's whole stacks ran, should a lost one be new.
    _tell(history.add([_whole(each, history, metadata) for each in night if each.lost]))
    name_set_aside(history.set_aside)
    lost = [f"{n.stack.name} {x.lane} {x.shard}: {x.cause}" for n in night for x in n.lost]
    return told([*lost, *left.strays()])


def _planned(options: argparse.Namespace) -> list[tuple[Stack, bool, list[Planned]]]:
    """Return each stack of the night, whether it got wheels, and its cells."""
    catalogue, jobs = project.catalogue(options.folder), []
    for name, wheels in _night(options.night):
        stack = catalogue.find(name)
        stack = with_wheels(stack) if wheels else stack
        jobs.append((stack, bool(wheels), cells(stack, names(options.lanes), options.shard)))
    return jobs


def _read(
    stack: Stack, planned: Sequence[Planned], folder: Cells, metadata: RunMetadata, *, wheels: bool
) -> _Tonight:
    runs: list[tuple[Planned, Run]] = []
    lost: list[Lost] = []
    for cell in planned:
        try:
            run = read_run(folder.report(stack, cell), metadata)
            _refuse_of_others(run, stack, cell, wheels=wheels)
        except BadInputError as error:
            lost.append(Lost(cell.lane, cell.shard, str(error)))
            continue
        runs.append((cell, run))
        if run.faults:
            lost.append(Lost(cell.lane, cell.shard, "; ".join(run.faults)))
    agreed, others = agreeing(runs)
    return _Tonight(stack, joined(agreed) if agreed else None, (*lost, *others))


def _refuse_of_others(run: Run, stack: Stack, cell: Planned, *, wheels: bool) -> None:
    """Refuse a report of another stack or lane than the cell's: it may be forged, or misplaced."""
    if run.stack != stack.name:
        raise BadInputError(
            f"property 'stack': expected {stack.name!r}, as the cell's, found {run.stack!r}"
        )
    # Wheels take the place of pins, and only those who ran them know which.
    versions = {"python": run.versions["python"]} if wheels else run.versions
    if wrong := stack.contradiction(versions):
        raise BadInputError(f"not as the cell's stack pins it: {wrong}")
    for case in run.cases:
        if case.lane not in ("", cell.lane):
            raise BadInputError(
                f"test case {case.id[:200]!r}: expected lane {cell.lane}, as the cell's, found "
                f"{case.lane[:50]!r}"
            )


def _whole(tonight: _Tonight, history: History, metadata: RunMetadata) -> Run:
    name, lanes = tonight.stack.name, {each.lane for each in tonight.lost}
    known = {}
    if history.files.listed().places:
        known = history.ask(
            lambda connection: {lane: known_cases(connection, name, lane) for lane in lanes}
        )
    return completed(tonight.run, name, metadata, tonight.lost, known)


def _tell(runs: Sequence[RecordedRun]) -> None:
    for run in runs:
        show(f"{run.run}  {run.added:<8}  {run.cases:>6} cases  {printable(run.stack)}")


def _night(text: str) -> list[tuple[str, str]]:
    try:
        data = json.loads(text)
        return [(str(entry["stack"]), str(entry["wheels"])) for entry in data]
    except (ValueError, TypeError, KeyError) as error:
        raise BadInputError(
            f"--night: expected the stacks that `xla-harness ci plan night` printed: {error!r}"
        ) from error
