"""``xla-harness since``: which stacks get an upstream issue wrong."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from harness.commands.output import answer, say
from harness.commands.parsers import Commands, add_json
from harness.commands.partial import told
from harness.commands.project import upstream_rows
from harness.render import since as shown
from harness.verdicts.since import find_reports, timelines

_REPORTS = Path("reports/matrix")
_FORMER = "history-of"


def add(commands: Commands) -> None:
    """Add the command, and its former name without a line in the help."""
    about = "since when an upstream issue is there: first bad, last bad, first good stack"
    _add_options(commands.add_parser("since", help=about, description=about))
    former = commands.add_parser(_FORMER, description=f"The former name of `since`: {about}.")
    _add_options(former)
    former.set_defaults(run=_former)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("issue", metavar="ISSUE", help="pytorch/xla#8854, its address, or 8854")
    parser.add_argument(
        "--reports", type=Path, default=_REPORTS, metavar="DIR", help=f"default: {_REPORTS}"
    )
    add_json(parser)
    parser.set_defaults(run=_run)


def _former(options: argparse.Namespace) -> int:
    say(f"xla-harness {_FORMER} is deprecated: it is called `xla-harness since` now")
    return _run(options)


def _run(options: argparse.Namespace) -> int:
    reports, faults = find_reports(options.reports)
    found = timelines(options.issue, reports, upstream_rows())
    answer(options, [dataclasses.asdict(one) for one in found], "\n".join(shown.lines(found)))
    return told(faults)
