"""``xla-harness ci wheels``: nightly wheels into a folder."""

from __future__ import annotations

import argparse
from datetime import UTC, date, datetime

from harness.commands.output import show
from harness.commands.parsers import output_folder, whole_number
from harness.errors import BadInputError
from harness.stacks.download import PLACE, download


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "addresses", metavar="ADDRESSES", help=f"separated by blanks; {PLACE} is the day, 20261121"
    )
    parser.add_argument("--out", type=output_folder, required=True, metavar="DIR")
    parser.add_argument("--date", metavar="ISO", help="the newest day to look at; default: today")
    parser.add_argument(
        "--back",
        type=whole_number(0, 3650),
        default=7,
        metavar="DAYS",
        help="to look back; default: 7",
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    addresses = options.addresses.split()
    if not addresses:
        raise BadInputError("ADDRESSES: expected at least one address of a wheel")
    for path in download(addresses, options.out, _day(options.date), options.back):
        show(str(path))
    return 0


def _day(text: str | None) -> date:
    try:
        return date.fromisoformat(text) if text else datetime.now(UTC).date()
    except ValueError as error:
        raise BadInputError(f"--date: expected a day, as 2026-11-21: {error}") from error
