"""A command that goes on in the environment of a stack."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, NoReturn

from harness.commands.output import say

if TYPE_CHECKING:
    from harness.stacks.stack import Stack


def add_stack(parser: argparse.ArgumentParser) -> None:
    """Add the option of every command that ``continue_in`` takes into a stack."""
    parser.add_argument(
        "--stack", metavar="NAME", help="in this stack's environment, made now if need be"
    )


def stack_named(name: str) -> Stack:
    """Return the stack of the project, or one that came along. Raises BadInputError."""
    from harness.commands.project import catalogue, folder_of_stacks

    return catalogue(folder_of_stacks()).find(name)


def continue_in(stack: Stack, options: argparse.Namespace) -> NoReturn:
    """Become this very command, without ``--stack``, in the stack's environment.

    Its programs come first on PATH. Raises BadInputError for a stack that can't be created.
    """
    from harness.matrix.cell import variables
    from harness.stacks.environments import Environments

    environments = Environments()
    python = environments.create(stack, say).python
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--stack")
    _, words = parser.parse_known_args(options.words)
    behind = ["--", *options.arguments] if options.arguments else []
    own = dict(variables(stack.name, environments.cache))
    own["PATH"] = os.pathsep.join(filter(None, [str(python.parent), own.get("PATH")]))
    command = [str(python), "-m", "harness", *words, *behind]
    os.execve(python, command, own)  # noqa: S606 - no shell is wanted
