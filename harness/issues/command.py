"""``xla-harness ci issues``: keep one GitHub issue for each regression."""

from __future__ import annotations

import argparse

from harness.commands.output import show
from harness.commands.parsers import site_address, whole_number
from harness.commands.query import name_set_aside
from harness.issues.actions import decide
from harness.issues.github import Issues
from harness.printable import printable
from harness.verdicts.regressions import state


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's own command."""
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    sync = actions.add_parser("sync", help="open, update, close and reopen them by a history")
    sync.add_argument("--history", required=True, metavar="DIR", help="a folder, or an address")
    sync.add_argument("--repo", required=True, metavar="OWNER/NAME")
    sync.add_argument("--site", default="", metavar="URL", help="of the dashboard, for links")
    sync.add_argument(
        "--most",
        type=whole_number(0, 1000),
        default=20,
        metavar="N",
        help="to open at once; the rest next time",
    )
    sync.add_argument("--dry-run", action="store_true", help="say what would be done")
    sync.set_defaults(run=_sync)
    sync.epilog = (
        "The token is in GITHUB_TOKEN, with permission to write issues; GITHUB_API_URL is where."
    )


def _sync(options: argparse.Namespace) -> int:
    from harness.history.store import History

    site = site_address(options.site, "--site")
    history, issues = History(options.history), Issues(options.repo)
    standing = history.ask(state)
    name_set_aside(history.set_aside)
    actions = decide(standing, issues.all(), site)
    opened = [action for action in actions if action.kind == "open"]
    kept = [action for action in actions if action.kind != "open"] + opened[: options.most]
    for action in kept:
        number = action.number if options.dry_run else issues.carry_out(action)
        subject = printable(action.title or action.comment)
        show(f"{action.kind:<7} #{number or '?'} {subject}".rstrip())
    left = len(opened) - len(opened[: options.most])
    show(f"{len(standing.regressions)} regressions stand, {len(kept)} issues changed, {left} left")
    return 0
