"""``xla-harness record``: runs into a history."""

from __future__ import annotations

import argparse
import os
from datetime import datetime
from pathlib import Path

from harness.commands.output import show
from harness.commands.parsers import Commands
from harness.errors import BadInputError
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
    said = Said(options.stack, options.commit, options.machine, _time(options.time))
    for run in History(options.history).record(options.reports, said, together=options.together):
        state = "recorded" if run.new else "known"
        show(f"{run.run}  {state:<8}  {run.cases:>6} cases  {printable(run.stack)}")
    return 0


def _time(text: str | None) -> datetime | None:
    try:
        return datetime.fromisoformat(text) if text else None
    except ValueError as error:
        raise BadInputError(
            f"--time: expected ISO 8601, as 2026-11-21T02:30:00Z: {error}"
        ) from error
