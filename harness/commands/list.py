"""``xla-harness ci list``."""

from __future__ import annotations

import argparse
from pathlib import Path

from harness.commands.output import answer, columns, say
from harness.commands.parsers import add_json
from harness.errors import BadInputError
from harness.model.case_id import file_of
from harness.session import listing


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "paths", nargs="*", default=["suites"], metavar="PATH", help="default: suites"
    )
    add_json(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    if missing := [path for path in options.paths if not Path(file_of(path)).exists()]:
        raise BadInputError(
            f"{missing[0]}: expected a file or folder of cases, as a clone of the project has"
        )
    say(f"collecting {' '.join(options.paths)} ...")
    cases, titles = listing.cases_of(listing.collect(options.paths))
    answer(options, listing.as_data(cases), listing.table(cases, titles, columns()))
    return 0
