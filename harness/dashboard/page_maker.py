"""Context of every module of ``pages/``: the facts, the templates and the site's folder.

Templates become text here: everything in them is escaped, and nothing on a page acts except the
site's own files.
"""

from __future__ import annotations

import heapq
import json
import sys
import zlib
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import cached_property
from importlib import resources

from markupsafe import Markup

from harness.dashboard import units
from harness.dashboard.changes import NEWS, Change
from harness.dashboard.site import Site
from harness.dashboard.site_facts import Facts
from harness.diagnosis.signature import headline
from harness.history.names import SetAside
from harness.model.case_id import test_of
from harness.model.faults_seen import PERCENT
from harness.model.issues import ISSUE, page
from harness.render import page_names
from harness.render.page_names import natural
from harness.verdicts.upstream import Row

MOST_CASES = 5_000  # with more, those that always pass or are always skipped are in no list
OWN_PAGES = 400  # cases that have a page of their own; the others share theirs
STATIC = ("site.css", "tables.js", "compare.js", "data.js", "icon.svg")
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'"
)
# Pages in the menu, in the order of a morning: what broke, why, and then the rest.
_ISSUES, _SENSITIVITY, _PLUGINS = "issues.html", "sensitivity.html", "plugins.html"
_MENU = (
    ("index.html", "Tonight"),
    ("failures.html", "Failures"),
    (_ISSUES, "Upstream issues"),
    ("cases.html", "Cases"),
    ("flaky.html", "Flaky"),
    ("slow.html", "Slow"),
    ("coverage.html", "Coverage"),
    (_SENSITIVITY, "Sensitivity"),
    (_PLUGINS, "Plugins"),
    ("runs.html", "Runs"),
    ("compare.html", "Compare"),
)


@dataclass
class Build:
    """The facts that a page module reads, and the site that it writes into."""

    facts: Facts
    site: Site
    changes: Sequence[Change]
    rows: Sequence[Row] = ()  # of upstream.toml: issues in an engineer's words
    address: str = ""  # where the site will be, for the feed; "" keeps its links relative
    set_aside: Sequence[SetAside] = ()  # files of the history that are not in the facts

    @cached_property
    def render(self) -> Renderer:
        """The templates."""
        return Renderer(
            example=self.example,
            menu=[entry for entry in _MENU if entry[0] not in self._empty],
            placed=self.facts.is_placed,
            case_page=self.case_page,
            run_page=self.run_page,
        )

    @cached_property
    def _empty(self) -> set[str]:
        """The pages that this history has nothing for: they exist, and stand in no menu."""
        rows = self.facts.latest
        empty = set()
        if not any(row.upstream or ISSUE.fullmatch(row.expectation or "") for row in rows) and (
            not any(any(row.select(rows)) for row in self.rows)
        ):
            empty.add(_ISSUES)
        if all(n.property != PERCENT for each in self.facts.numbers.values() for n in each):
            empty.add(_SENSITIVITY)
        if not self.facts.plugin_answers:
            empty.add(_PLUGINS)
        return empty

    def is_listed(self, case: str) -> bool:
        """Return whether lists have the case: in a small history all do, else those with news."""
        return len(self.facts.areas) <= MOST_CASES or case in self.news

    @cached_property
    def news(self) -> set[str]:
        """The cases of which there is more to read than that they always pass or are skipped."""
        return self.facts.eventful | {change.case for change in self.changes}

    @cached_property
    def own_pages(self) -> set[str]:
        """The cases that have a page of their own: what changed tonight, then what is worst."""
        red = {change.case for change in self.changes if change.verdict in NEWS}
        changed = {change.case for change in self.changes}
        worst = dict.fromkeys(self.facts.areas, sys.maxsize)
        for row in self.facts.latest:
            worst[row.name] = min(units.urgency(row.outcome), worst[row.name])

        def rank(name: str) -> tuple[object, ...]:
            is_quiet = name not in self.news
            return name not in red, name not in changed, is_quiet, worst[name], name

        return set(heapq.nsmallest(OWN_PAGES, worst, rank))

    def case_page(self, case: str) -> str:
        """Return the address of a case from the site's root."""
        own = case in self.own_pages
        return page_names.case_page(case) if own else page_names.shared_case_page(case)

    def run_page(self, run: str) -> str:
        """Return the address of a run from the site's root; "" for one that is not shown."""
        return page_names.run_page(run) if run in self.facts.run else ""

    def page(self, template: str, path: str, key: str = "", **values: object) -> None:
        """Publish a page; ``key`` as for ``Site.write``."""
        self.site.write(path, self.render.page(template, path, **values), key)

    def data(self, path: str, text: str) -> None:
        """Publish JSON as a script that ``load`` in ``static/data.js`` reads."""
        packed = b64encode(zlib.compress(text.encode())).decode()
        self.site.write(f"data/{path}.js", f'packed["{path}"] = "{packed}";\n')

    @cached_property
    def example(self) -> str:
        """Example for the search box: an issue of this history, or else a case's name."""
        rows = self.facts.latest
        named = {issue for row in rows for issue in (*(row.upstream or ()), row.expectation or "")}
        issues = [issue for issue in named if ISSUE.fullmatch(issue)]
        names = (test_of(row.name) for row in rows)
        return min(issues, key=natural, default=next(filter(None, names), ""))


class Renderer:
    """The Jinja2 environment of one site."""

    def __init__(
        self,
        *,
        example: str,
        menu: Sequence[tuple[str, str]],
        placed: bool,
        case_page: Callable[[str], str],
        run_page: Callable[[str], str],
    ) -> None:
        """Make pages: ``example`` stands in the search box.

        ``placed`` is whether any case names a lane or a topology: without one, tables have no
        column for it.
        """
        from jinja2 import Environment, PackageLoader, StrictUndefined

        self._environment = Environment(
            loader=PackageLoader("harness.dashboard"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=_finalized,
            auto_reload=False,  # a template does not change while a site is made of it
        )
        self._environment.globals.update(
            policy=POLICY,
            menu=menu,
            example=example,
            placed=placed,
            seconds=units.seconds,
            number=units.number,
            stamp=units.stamp,
        )
        self._environment.filters.update(
            case_page=case_page,
            run_page=run_page,
            run_time=units.run_time,
            issue_page=page,
            kind=units.kind,
            day=units.day,
            when=units.when,
            seconds=units.seconds,
            number=units.number,
            plural=units.plural,
            headline=headline,
            named=lambda text: text or "none",
        )

    def page(self, template: str, path: str, **values: object) -> str:
        """Render a template for the file at ``path``, from which its links are relative."""
        page_template = self._environment.get_template(template)
        return str(page_template.render(root="../" * path.count("/"), path=path, **values))

    def script(self, template: str) -> str:
        """Return the statement that gives a script the template."""
        from harness.dashboard.script_template import script

        return script(self._environment, template)


def static(name: str) -> bytes:
    """Return a file that every page shares."""
    return resources.files("harness.dashboard").joinpath("static", name).read_bytes()


def as_json(data: object) -> str:
    """Return data for programs, in ASCII, so that nothing in it can be mistaken for markup."""
    return json.dumps(data, default=_plain) + "\n"


def _finalized(value: object) -> object:
    """Return what a template prints, before it is escaped."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return page_names.visible(value)
    return value


def _plain(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat(timespec="seconds") + "Z"
    if isinstance(value, date):
        return value.isoformat()
    raise TypeError(type(value))
