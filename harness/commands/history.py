"""``xla-harness history``: a history kept on a branch of a git repository."""

from __future__ import annotations

import argparse
from pathlib import Path

from harness.commands.parsers import Commands
from harness.commands.step_outputs import print_outputs
from harness.results.history_branch import Branch


def add(commands: Commands) -> None:
    """Add the command and its own commands."""
    parser = commands.add_parser("history", help="fetch a history from a git branch, or add to it")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    for name, run, text in (
        ("fetch", _fetch, "the branch's runs into a folder; an absent branch has none"),
        ("push", _push, "the folder's runs onto the branch, which is made if need be"),
    ):
        action = actions.add_parser(name, help=text)
        action.add_argument("history", type=Path, metavar="DIR")
        action.add_argument("--remote", default="origin", help="an address, or a remote's name")
        action.add_argument("--branch", default="history", help="default: history")
        action.set_defaults(run=run)


def _fetch(options: argparse.Namespace) -> int:
    print_outputs({"runs": Branch(options.remote, options.branch).fetch(options.history)})
    return 0


def _push(options: argparse.Namespace) -> int:
    print_outputs({"pushed": Branch(options.remote, options.branch).push(options.history)})
    return 0
