"""One night's site, page by page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from duckdb import DuckDBPyConnection

from harness.dashboard import (
    case,
    cases,
    cells,
    compare,
    coverage,
    failures,
    feed,
    flaky,
    issues,
    overview,
    runs,
    slow,
)
from harness.dashboard.build import Build
from harness.dashboard.changes import judged
from harness.dashboard.facts import Facts
from harness.dashboard.render import STATIC, static
from harness.dashboard.site import Site
from harness.history.names import SetAside
from harness.verdicts.upstream import Row

NIGHTS = 90


@dataclass(frozen=True)
class Shown:
    """What a site shows besides the facts."""

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
        site.write(".nojekyll", "")  # GitHub Pages would leave out what its generator does not know
        found = case.publish(build)
        for publisher in (cells, cases, runs, compare, failures, issues, slow, coverage, feed):
            publisher.publish(build)
        flaky.publish(build, found)
        overview.publish(build)
    return site
