"""The command ``xla-harness``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from harness import __version__
from harness.commands import (
    bisect,
    collect,
    dashboard,
    durations,
    expectations,
    history,
    history_of,
    issues,
    jobset,
    list_,
    matrix,
    plan,
    qualify,
    query,
    record,
    repro,
    skew,
    stacks,
    topologies,
    verdict,
    wheels,
)
from harness.errors import BadInputError
from harness.versions import stack_versions

_COMMANDS = (
    list_,
    topologies,
    stacks,
    wheels,
    plan,
    matrix,
    qualify,
    bisect,
    history_of,
    skew,
    expectations,
    durations,
    repro,
    record,
    collect,
    history,
    verdict,
    query,
    issues,
    dashboard,
    jobset,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 2 for input that can't be used, else what the command says."""
    own = list(sys.argv[1:] if arguments is None else arguments)
    own, pytest_arguments = _split(own)
    parser = _parser()
    options = parser.parse_args(own)
    if pytest_arguments and "arguments" not in options:
        parser.error(f"{own[0]} runs no pytest: expected nothing behind --")
    options.arguments = pytest_arguments
    try:
        return int(options.run(options))
    except BadInputError as error:
        print(f"xla-harness: {error}", file=sys.stderr)
        return 2


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The command's own arguments, and those behind ``--``, which are pytest's."""
    if "--" not in arguments:
        return arguments, []
    index = arguments.index("--")
    return arguments[:index], arguments[index + 1 :]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="xla-harness", description=sys.modules["harness"].__doc__)
    stack = ", ".join(f"{name} {version}" for name, version in stack_versions().items())
    parser.add_argument(
        "--version", action="version", version=f"xla-harness {__version__} ({stack})"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in _COMMANDS:
        command.add(commands)
    return parser
