"""``xla-harness record``: add runs to a history."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from harness.commands.output import show
from harness.commands.partial import told
from harness.errors import BadInputError
from harness.history.run import Run, RunMetadata, joined, parse_time, read_run
from harness.printable import printable


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "reports", nargs="+", type=Path, metavar="REPORT", help="JUnit, of any pytest"
    )
    parser.add_argument("--history", required=True, metavar="DIR", help="a folder, or an address")
    parser.add_argument(
        "--together", action="store_true", help="the reports are lanes or shards of one run"
    )
    parser.add_argument("--stack", default="", help="the stack's name, if the reports don't say it")
    parser.add_argument("--machine", default="", help="the machine's name (default: the report's)")
    parser.add_argument(
        "--commit", default=os.environ.get("GITHUB_SHA", ""), help="default: $GITHUB_SHA"
    )
    parser.add_argument("--time", metavar="ISO", help="start time (default: the report's)")
    parser.set_defaults(run=_run)
    parser.epilog = "The exit code is 3 when something can't be read; the rest is recorded."


def _run(options: argparse.Namespace) -> int:
    from harness.history.store import History

    time = parse_time(options.time, "--time") if options.time else None
    metadata = RunMetadata(options.stack, options.commit, options.machine, time)
    runs, faults = _read(options.reports, metadata)
    for run in History(options.history).add([joined(runs)] if options.together else runs):
        show(f"{run.run}  {run.added:<8}  {run.cases:>6} cases  {printable(run.stack)}")
    return told(faults)


def _read(paths: Sequence[Path], metadata: RunMetadata) -> tuple[list[Run], list[str]]:
    """Return the runs that can be read, and what is wrong with the others.

    Raises BadInputError, naming every report, if none can be read.
    """
    runs, faults = list[Run](), list[str]()
    for path in paths:
        try:
            runs.append(read_run(path, metadata))
            faults += runs[-1].faults
        except BadInputError as error:
            faults.append(str(error))
    if not runs:
        raise BadInputError("\n".join(faults))
    return runs, faults
