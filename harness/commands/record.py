"""``xla-harness record``: runs into a history."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from harness.commands.parsers import Commands, time_of
from harness.results.history_store import History
from harness.results.junit_run import Said
from harness.results.printable import printable


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "record", help="add JUnit reports, ours or any pytest's, to a history"
    )
    parser.add_argument(
        "reports", nargs="+", type=Path, metavar="REPORT", help="JUnit, of any pytest"
    )
    parser.add_argument("--history", required=True, metavar="DIR", help="a folder, or an address")
    parser.add_argument(
        "--together", action="store_true", help="the reports are lanes or shards of one run"
    )
    parser.add_argument("--stack", default="", help="its name, where the reports don't say it")
    parser.add_argument("--machine", default="", help="its name; else the report's")
    parser.add_argument(
        "--commit", default=os.environ.get("GITHUB_SHA", ""), help="default: $GITHUB_SHA"
    )
    parser.add_argument("--time", metavar="ISO", help="of the start; else the report's")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    time = time_of(options.time) if options.time else None
    said = Said(options.stack, options.commit, options.machine, time)
    for run in History(options.history).record(options.reports, said, together=options.together):
        print(f"{run.run}  {run.added:<8}  {run.cases:>6} cases  {printable(run.stack)}")
    return 0
