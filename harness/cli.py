"""The command ``xla-harness``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from harness import __version__, listing
from harness.errors import BadInputError
from harness.versions import stack_versions


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 when it did what was asked, 2 for input that can't be used."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except BadInputError as error:
        print(f"xla-harness: {error}", file=sys.stderr)  # noqa: T201
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="xla-harness", description=sys.modules["harness"].__doc__)
    stack = ", ".join(f"{name} {version}" for name, version in stack_versions().items())
    parser.add_argument(
        "--version", action="version", version=f"xla-harness {__version__} ({stack})"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    show = commands.add_parser(
        "list", help="areas with their cases, lanes, topologies and upstream issues"
    )
    show.add_argument("paths", nargs="*", default=["suites"], metavar="PATH")
    show.add_argument("--json", action="store_true", help="one object for each case")
    show.set_defaults(run=_list)
    return parser


def _list(options: argparse.Namespace) -> int:
    print(f"collecting {' '.join(options.paths)} ...", file=sys.stderr)  # noqa: T201
    cases, titles = listing.collect(options.paths)
    data = listing.as_data(cases)
    text = json.dumps(data, indent=1) if options.json else listing.table(cases, titles)
    print(text)  # noqa: T201
    return 0
