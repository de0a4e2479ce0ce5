"""``xla-harness ci completion``: what a shell needs to complete the command line."""

from __future__ import annotations

import argparse

from harness.commands.output import show

SHELLS = ("bash", "zsh")


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("shell", choices=SHELLS, help="whose script to print")
    parser.set_defaults(run=_run)
    parser.epilog = 'As in ~/.bashrc: eval "$(xla-harness ci completion bash)"'


def _run(options: argparse.Namespace) -> int:
    import shtab

    for line in shtab.complete(options.every_command(), options.shell).splitlines():
        show(line)
    return 0
