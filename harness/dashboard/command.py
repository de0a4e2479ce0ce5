"""``xla-harness dashboard``: a history as a static site."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from harness.commands.output import say, show
from harness.commands.parsers import output_folder, site_address, whole_number
from harness.commands.project import upstream_rows
from harness.commands.query import name_set_aside
from harness.dashboard.publish import NIGHTS, Shown, publish
from harness.dashboard.site import Site
from harness.errors import PARTIAL
from harness.isolation.garbage import uncollected

if TYPE_CHECKING:
    import duckdb


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--history", required=True, metavar="DIR", help="a folder, or an address")
    parser.add_argument(
        "--out", required=True, type=output_folder, metavar="SITE", help="the site's folder"
    )
    parser.add_argument(
        "--nights",
        type=whole_number(1, 36_500),
        default=NIGHTS,
        metavar="N",
        help=f"calendar days that it shows; default: {NIGHTS}",
    )
    parser.add_argument(
        "--upstream",
        type=Path,
        default=None,
        metavar="FILE",
        help="issues in an engineer's words; default: ini xla_upstream",
    )
    parser.add_argument(
        "--address",
        default="",
        metavar="URL",
        help="where it will be, for links; pages: GitHub Pages",
    )
    parser.set_defaults(run=_run)
    parser.epilog = "The exit code is 3 when a file of the history is set aside; the rest is shown."


def _run(options: argparse.Namespace) -> int:
    from harness.history.store import History

    home = site_address(options.address)
    rows = upstream_rows(options.upstream)
    history = History(options.history)

    def site_of(connection: duckdb.DuckDBPyConnection) -> Site:
        shown = Shown(rows, options.nights, home, history.set_aside)
        return publish(connection, options.out, shown)

    start = time.monotonic()
    with uncollected():  # of what a site is made of nothing is circular
        site = history.ask(site_of)
    name_set_aside(history.set_aside)
    say(f"{time.monotonic() - start:.1f} s")
    show(f"{options.out / 'index.html'}: {site.pages} files, {site.written} new or changed")
    return PARTIAL if history.set_aside else 0
