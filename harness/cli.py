"""The command ``xla-harness``."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from harness import __version__
from harness.commands.all_commands import ABOUT_CI, CI, COMMANDS, Command
from harness.commands.output import say, show
from harness.errors import INTERRUPTED, BadInputError, nearest
from harness.model.versions import present, stack_versions

if TYPE_CHECKING:
    from harness.commands.parsers import Commands

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
    except BrokenPipeError:  # as of `xla-harness ci query ... | head`
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
    name = _name(own)
    parser = _parser(name)
    options = parser.parse_args(own)
    if pytest_arguments and "arguments" not in options:
        parser.error(f"{name} runs no other program: expected nothing after --")
    options.words, options.arguments = own, pytest_arguments
    options.every_command = _parser  # `completion` reads the options of all commands
    return int(options.run(options))


def _name(words: Sequence[str]) -> str:
    """Return the command that the words begin with, such as ``ci plan``.

    Returns "" if an option comes before it. Raises BadInputError for a command that is not known.
    """
    group = [*words[:1]] if words[:1] == ["ci"] else []
    (word,) = words[len(group) : len(group) + 1] or [""]
    if not word or word.startswith("-"):
        return ""
    name = " ".join([*group, word])
    if name not in _modules():
        raise BadInputError(f"command {name!r}: {nearest(name, _modules())}")
    return name


def _modules() -> dict[str, str]:
    """Return the module of each command, by its name with its group."""
    groups = {"": COMMANDS, "ci ": CI}
    return {f"{group}{n}": c.module for group, each in groups.items() for n, c in each.items()}


def _refuse_undecodable(arguments: Sequence[str]) -> None:
    """Refuse arguments that are not text in UTF-8: no report, page or table could hold them."""
    for before, text in pairwise(["", *arguments]):
        if not text.isascii() and text.encode(errors="ignore").decode() != text:
            option = f"{before}: " if before.startswith("--") else ""
            raise BadInputError(f"{option}{text!a}: expected text in UTF-8")


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Return the command's own arguments, and those after ``--``, which go to another program."""
    if "--" not in arguments:
        return arguments, []
    index = arguments.index("--")
    return arguments[:index], arguments[index + 1 :]


def _parser(only: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of the command line; with ``only``, no other command has its options.

    The modules of other commands are then not imported, so that each command starts fast.
    """
    parser: argparse.ArgumentParser = _Parser(
        prog="xla-harness", description=sys.modules["harness"].__doc__
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show versions and exit")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add(commands, COMMANDS, "", only)
    group = commands.add_parser("ci", help=ABOUT_CI, description=ABOUT_CI)
    _add(group.add_subparsers(required=True, metavar="COMMAND"), CI, "ci ", only)
    return parser


def _add(parsers: Commands, commands: Mapping[str, Command], group: str, only: str | None) -> None:
    """Add the commands to the parsers, with their options unless ``only`` names another."""
    for name, command in commands.items():
        parser = parsers.add_parser(name, help=command.about, description=command.about)
        if only in (None, f"{group}{name}"):
            import_module(f"harness.{command.module}").add(parser)


class _Parser(argparse.ArgumentParser):
    """Parser that names what resembles a word or an option that it does not know."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(action, f"{value!r}: {nearest(value, action.choices)}")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the arguments; end the command if one is left over."""
        options, others = super().parse_known_args(args, namespace)
        if others:
            option, *_ = others[0].split("=")
            known = [name for name in self._option_string_actions if name.startswith("--")]
            hint = f": {nearest(option, known)}" if option.startswith("--") else ""
            self.error(f"unrecognized arguments: {' '.join(others)}{hint}")
        return options, others


class _Version(argparse.Action):
    """Action that prints the versions, for which it looks at every component's package."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        stack = ", ".join(f"{name} {text}" for name, text in present(stack_versions()).items())
        show(f"xla-harness {__version__} ({stack})")
        parser.exit()
