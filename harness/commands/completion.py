"""``xla-harness completion``: what a shell needs to complete the command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import shtab

from harness.commands.output import show
from harness.commands.parsers import Commands

SHELLS = ("bash", "zsh")


def add(commands: Commands, parser: Callable[[], argparse.ArgumentParser]) -> None:
    """Add the command; ``parser`` makes the whole command line's."""
    command = commands.add_parser("completion", help="print a script that completes commands")
    command.add_argument("shell", choices=SHELLS, help="whose script to print")
    command.set_defaults(run=lambda options: _run(options, parser()))
    command.epilog = 'As in ~/.bashrc: eval "$(xla-harness completion bash)"'


def _run(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    for line in shtab.complete(parser, options.shell).splitlines():
        show(line)
    return 0
