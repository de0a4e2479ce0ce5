"""``xla-harness history-of``."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from harness.commands.output import answer
from harness.commands.parsers import Commands, add_json
from harness.commands.partial import told
from harness.commands.project import upstream_rows
from harness.render import releases as shown
from harness.verdicts import releases as history

_REPORTS = Path("reports/matrix")


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "history-of", help="an upstream issue over stacks: first bad, last bad, first good"
    )
    parser.add_argument("issue", metavar="ISSUE", help="pytorch/xla#8854, its address, or 8854")
    parser.add_argument(
        "--reports", type=Path, default=_REPORTS, metavar="DIR", help=f"default: {_REPORTS}"
    )
    add_json(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    rows = upstream_rows()
    reports, faults = history.find_reports(options.reports)
    found = history.histories(options.issue, reports, rows)
    answer(options, [dataclasses.asdict(one) for one in found], "\n".join(shown.lines(found)))
    return told(faults)
