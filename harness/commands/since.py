"""``xla-harness since``: which stacks get an upstream issue wrong."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from harness.commands.output import answer
from harness.commands.parsers import add_json
from harness.commands.partial import told
from harness.commands.project import upstream_rows
from harness.render import since as shown
from harness.verdicts.since import find_reports, timelines

_REPORTS = Path("reports/matrix")


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("issue", metavar="ISSUE", help="pytorch/xla#8854, its address, or 8854")
    parser.add_argument(
        "--reports", type=Path, default=_REPORTS, metavar="DIR", help=f"default: {_REPORTS}"
    )
    add_json(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    reports, faults = find_reports(options.reports)
    found = timelines(options.issue, reports, upstream_rows())
    answer(options, [dataclasses.asdict(one) for one in found], "\n".join(shown.lines(found)))
    return told(faults)
