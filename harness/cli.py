"""The command ``xla-harness``."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from itertools import pairwise

from harness import __version__
from harness.commands import (
    bisect,
    collect,
    completion,
    dashboard,
    durations,
    expectations,
    history,
    issues,
    jobset,
    known,
    list_,
    matrix,
    plan,
    qualify,
    query,
    record,
    repro,
    run,
    since,
    skew,
    stacks,
    topologies,
    verdict,
    wheels,
)
from harness.commands.output import say
from harness.errors import BadInputError
from harness.model.versions import stack_versions

_COMMANDS = (
    list_,
    known,
    topologies,
    stacks,
    wheels,
    plan,
    matrix,
    qualify,
    bisect,
    since,
    skew,
    expectations,
    durations,
    repro,
    run,
    record,
    collect,
    history,
    verdict,
    query,
    issues,
    dashboard,
    jobset,
)

_BROKEN_PIPE = 128 + 13  # as a shell says it of a program that SIGPIPE ended


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code. docs/exit-codes.md has them all.

    2 is input that can't be used, and 70 a bug here: neither may look like 1, a verdict.
    """
    try:
        try:
            return _run(list(sys.argv[1:] if arguments is None else arguments))
        finally:
            _flush()
    except BrokenPipeError:  # as of `xla-harness query ... | head`
        return _BROKEN_PIPE
    except (BadInputError, OSError) as error:  # OSError: a full disk, a folder that is not readable
        say(f"xla-harness: {error}", style="red")
        return 2
    except Exception:
        say(f"{traceback.format_exc()}xla-harness: this is a bug in xla-harness, please report it")
        return os.EX_SOFTWARE


def _flush() -> None:
    """Write what was printed now: the interpreter ends with 120 where it can't be written."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


def _run(arguments: list[str]) -> int:
    _refuse_undecodable(arguments)
    own, pytest_arguments = _split(arguments)
    parser = _parser()
    options = parser.parse_args(own)
    if pytest_arguments and "arguments" not in options:
        parser.error(f"{own[0]} runs no other program: expected nothing behind --")
    options.arguments = pytest_arguments
    return int(options.run(options))


def _refuse_undecodable(arguments: Sequence[str]) -> None:
    """No option takes bytes that are no text: no report, no page and no table could hold them."""
    for before, text in pairwise(["", *arguments]):
        if not text.isascii() and text.encode(errors="ignore").decode() != text:
            option = f"{before}: " if before.startswith("--") else ""
            raise BadInputError(f"{option}{text!a}: expected text in UTF-8")


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The command's own arguments, and those behind ``--``, which are another program's."""
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
    completion.add(commands, _parser)
    return parser
