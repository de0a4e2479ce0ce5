"""``xla-harness ci durations``: what ``--shard`` splits a run by."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from harness.commands.output import show
from harness.commands.parsers import output_file
from harness.commands.partial import told
from harness.commands.project import file_of_durations
from harness.files import write
from harness.junit.report import read_all
from harness.session.selection import recorded


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("reports", nargs="+", type=Path, metavar="REPORT", help="JUnit, ours")
    parser.add_argument(
        "--out",
        type=output_file,
        default=file_of_durations(),
        help="default: %(default)s, ini xla_durations",
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    reports, faults = read_all(options.reports)
    every = [result for report in reports for result in report.results.values()]
    results = [result for result in every if not result.lost]
    durations = recorded((result.id, result.lane, result.duration) for result in results)
    text = json.dumps(durations, indent=1) + "\n"
    write({options.out: text})
    functions = sum(len(functions) for functions in durations.values())
    show(f"{options.out}: {len(results)} cases of {functions} test functions")
    return told(faults)
