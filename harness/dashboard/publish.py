"""Publish one night's site, page by page; the front page comes last, so its links work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.dashboard.changes import judged
from harness.dashboard.page_maker import STATIC, Build, static
from harness.dashboard.pages import (
    case_page,
    cases_page,
    compare_page,
    coverage_page,
    failures_page,
    feed,
    flaky_page,
    front_page,
    issues_page,
    plugins_page,
    runs_page,
    search_page,
    sensitivity_page,
    slow_page,
)
from harness.dashboard.site import Site
from harness.dashboard.site_facts import Facts
from harness.history.names import SetAside
from harness.verdicts.upstream import Row

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

NIGHTS = 90
_PAGES = (
    cases_page,
    runs_page,
    compare_page,
    slow_page,
    coverage_page,
    sensitivity_page,
    plugins_page,
    feed,
)


@dataclass(frozen=True)
class Shown:
    """Options of a site, and what it shows besides the facts."""

    rows: Sequence[Row] = ()  # of upstream.toml
    nights: int = NIGHTS  # calendar days
    address: str = ""  # where the site will be
    set_aside: Sequence[SetAside] = ()  # files that the view ``cases`` leaves out


def publish(connection: DuckDBPyConnection, out: Path, shown: Shown) -> Site:
    """Publish the site of a history's view ``cases`` into ``out``.

    Raises BadInputError when ``out`` can't be written or holds something else; what was there
    before is whole then.
    """
    with Site(out) as site:
        facts = Facts(connection, shown.nights)
        changes = judged(connection, facts, shown.nights)
        build = Build(facts, site, changes, shown.rows, shown.address, shown.set_aside)
        for name in STATIC:
            site.write(name, static(name))
        site.write("case.js", build.render.script("case_body.html").encode() + static("case.js"))
        site.write("404.html", build.render.page("404.html", "case/404.html"))
        site.write(".nojekyll", "")  # GitHub Pages would leave out what its generator does not know
        flaky = case_page.publish(build)
        for page in _PAGES:
            page.publish(build)
        flaky_page.publish(build, flaky)
        search_page.publish(build, issues_page.publish(build), failures_page.publish(build))
        front_page.publish(build)
    return site
