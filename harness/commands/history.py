"""``xla-harness ci history``: fetch a history from a branch of a git repository, or push to it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.commands.output import annotate, say
from harness.commands.query import name_set_aside
from harness.commands.step_outputs import print_outputs
from harness.errors import PARTIAL
from harness.history.names import SetAside
from harness.render.github_markup import ANNOTATIONS, annotation

if TYPE_CHECKING:
    from harness.history.branch import Branch


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's own commands."""
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    for name, run, text in (
        ("fetch", _fetch, "the branch's runs into a folder; an absent branch has none"),
        ("push", _push, "the folder's runs onto the branch, which is made if need be"),
    ):
        action = actions.add_parser(name, help=text)
        action.add_argument("history", type=Path, metavar="DIR")
        action.add_argument("--remote", default="origin", help="an address, or a remote's name")
        action.add_argument("--branch", default="history", help="default: history")
        action.add_argument(
            "--annotations",
            action="store_true",
            help="print a GitHub ::warning line for each damaged run too, on standard error",
        )
        action.set_defaults(run=run)
        action.epilog = f"The exit code is {PARTIAL} when some runs are damaged: they are named."


def _fetch(options: argparse.Namespace) -> int:
    done = _branch(options).fetch(options.history)
    print_outputs({"runs": done.runs})
    return _partly(options, done.set_aside)


def _push(options: argparse.Namespace) -> int:
    done = _branch(options).push(options.history)
    for name in done.replaced:
        say(f"replaced, since the branch had it damaged: {name}")
    print_outputs({"pushed": len(done.new) + len(done.replaced)})
    return _partly(options, done.set_aside)


def _branch(options: argparse.Namespace) -> Branch:
    from harness.history.branch import Branch

    return Branch(options.remote, options.branch)


def _partly(options: argparse.Namespace, set_aside: Sequence[SetAside]) -> int:
    name_set_aside(set_aside)
    if options.annotations:
        lines = [
            annotation("warning", "", f"damaged: {file.name}", file.cause)
            for file in set_aside[:ANNOTATIONS]
        ]
        annotate(lines, sys.stderr)  # standard output is for $GITHUB_OUTPUT
    return PARTIAL if set_aside else 0
