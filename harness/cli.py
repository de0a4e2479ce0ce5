"""The command ``xla-harness``."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise

from harness import __version__
from harness.commands.output import say, show
from harness.errors import INTERRUPTED, BadInputError, nearest
from harness.model.versions import stack_versions

# Each command is a module of harness.commands. The help shows them in this order.
_COMMANDS = {
    "list": "areas with their cases, lanes, topologies and upstream issues",
    "known": "the defects that expectations declare: causes, cases and stacks",
    "topologies": "the TPU slices that the installed libtpu compiles for",
    "stacks": "stacks and their environments",
    "wheels": "download nightly wheels of one day",
    "plan": "stacks and cells of a workflow, as KEY=JSON lines",
    "matrix": "run the suites on several stacks and lanes, and compare them",
    "qualify": "one verdict on moving from a stack to another, and what carries it",
    "bisect": "name the stack that broke a case, or fixed it",
    "since": "since when an upstream issue is there: first bad, last bad, first good stack",
    "skew": "compile a fixed set of programs with each JAX and each libtpu",
    "sensitivity": "plant faults in the programs that tests compile, and say which were seen",
    "expectations": "what upstream is known to get wrong",
    "durations": "record how long cases take, for --shard",
    "repro": "write a case as one script that needs neither the harness nor pytest",
    "run": "run a command on a lane: xla-harness run --topology 2x4 -- python train.py",
    "record": "add JUnit reports, ours or any pytest's, to a history",
    "collect": "add a night's cells to a history; what a dead cell lost is recorded too",
    "history": "fetch a history from a git branch, or add to it",
    "verdict": "what regressed, was fixed, is flaky, missing or slower in a run",
    "query": "ask a history in SQL, over the views cases and outcomes",
    "issues": "keep one GitHub issue for each regression",
    "dashboard": "publish a history as a static site",
    "jobset": "print a Kubernetes JobSet that runs cases on TPU slices; collect its reports",
    "completion": "print a script that completes commands",
}

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
    except KeyboardInterrupt:
        say("xla-harness: interrupted")
        return INTERRUPTED
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
    if own and not own[0].startswith("-") and own[0] not in _COMMANDS:
        raise BadInputError(f"command {own[0]!r}: {nearest(own[0], _COMMANDS)}")
    parser = _parser(own[0] if own else "")
    options = parser.parse_args(own)
    if pytest_arguments and "arguments" not in options:
        parser.error(f"{own[0]} runs no other program: expected nothing behind --")
    options.words, options.arguments = own, pytest_arguments
    options.every_command = _parser  # whose options `completion` needs
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


def _parser(only: str | None = None) -> argparse.ArgumentParser:
    """The parser of the command line; with ``only``, no other command has its options.

    The modules of other commands are then not imported, so that each command starts fast.
    """
    parser = argparse.ArgumentParser(prog="xla-harness", description=sys.modules["harness"].__doc__)
    parser.add_argument("--version", action=_Version, nargs=0, help="show versions and exit")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, about in _COMMANDS.items():
        command = commands.add_parser(name, help=about, description=about)
        if only is None or name == only:
            import_module(f"harness.commands.{name}").add(command)
    return parser


class _Version(argparse.Action):
    """Prints the versions, which take a look at every component's package."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        stack = ", ".join(f"{name} {version}" for name, version in stack_versions().items())
        show(f"xla-harness {__version__} ({stack})")
        parser.exit()
