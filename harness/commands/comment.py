"""``xla-harness ci comment``: keep one comment on a pull request."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.commands.output import annotate, show
from harness.commands.parsers import whole_number
from harness.errors import BadInputError
from harness.files import read_text
from harness.render.github_markup import annotation

_MOST = 60_000  # characters of a text; GitHub accepts 65,536
_REFUSED = 403  # GitHub's answer to a write with a token that may only read


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("text", type=Path, metavar="FILE", help="the comment, as Markdown")
    parser.add_argument("--repo", required=True, metavar="OWNER/NAME")
    parser.add_argument("--pull-request", required=True, type=whole_number(1, 10**9), metavar="N")
    parser.add_argument(
        "--name",
        default="xla-harness",
        metavar="NAME",
        help="comments of different names stay apart (default: %(default)s)",
    )
    parser.set_defaults(run=_run)
    parser.epilog = (
        "The token is a runner's GITHUB_TOKEN, with permission to write pull requests; "
        "GITHUB_API_URL is where."
    )


def _run(options: argparse.Namespace) -> int:
    from harness.github_api import GitHubRepository  # urllib is slow to import

    text, github = read_text(options.text), GitHubRepository(options.repo)
    issues = f"{github.path}/issues"
    address = f"{issues}/{options.pull_request}/comments"
    digest = hashlib.sha256(options.name.encode()).hexdigest()[:12]  # no name can end the marker
    marker = f"<!-- xla-harness comment {digest} -->\n"
    data = {"body": f"{marker}{text[:_MOST]}"}
    ours = next(_with(marker, address, github.pages(f"{address}?per_page=100")), 0)
    method, where = ("PATCH", f"{issues}/comments/{ours}") if ours else ("POST", address)
    if github.send(method, where, data, known=(_REFUSED,)):
        show(f"pull request {options.pull_request}: comment {'updated' if ours else 'written'}")
    else:
        reason = (
            "the token may not write, as on a pull request from a fork or of Dependabot: "
            "the job's summary has the answer"
        )
        annotate([annotation("notice", "", "no comment", reason)])
    return 0


def _with(marker: str, address: str, comments: Iterator[Any]) -> Iterator[int]:
    """Yield the ids of the comments that begin with the marker and that a workflow wrote.

    A person may copy the marker, and could afterwards edit what the comment says.
    """
    for comment in comments:
        try:
            by_workflow = comment["user"] is not None and comment["user"]["type"] == "Bot"
            if by_workflow and comment["body"].replace("\r\n", "\n").startswith(marker):
                yield int(comment["id"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise BadInputError(f"{address}: expected comments: {error!r}") from error
