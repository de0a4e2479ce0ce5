"""The site of a project that records plain tests: no lane, no stack, no version, no commit."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from support.pages import Page
from support.site_nights import Night, Row, Told, example, fails, write

from harness import cli
from harness.dashboard import page_maker

NOTHING = dict.fromkeys(
    ("torch", "torch_xla", "python", "jax", "jaxlib", "libtpu", "commit", "machine"), ""
)


def plain(name: str, becomes: Row | None = None, first: int = 0) -> Told:
    """A case without a lane that from night ``first`` on is as ``becomes`` says."""

    def now(night: Night) -> Row:
        return {"machine": ""} | (becomes or {} if night.number >= first else {})

    return Told(f"tests/test_model.py::{name}", "tests", "", "", becomes=now)


CASES = [
    *(plain(f"test_steady[{n}]") for n in range(6)),
    plain("test_broken", fails("AssertionError: loss is nan"), 2),
    plain("test_known", fails("known", "expected failure")),
    plain("test_passes_again", {"outcome": "unexpected pass"}),
    plain("test_two_machines", {"outcome": "skipped", "message": "needs two machines"}),
]


def published(folder: Path) -> dict[str, Page]:
    """The pages of the site of those cases' three nights."""
    write(folder / "h", CASES, range(3), ["unknown"], lambda night: NOTHING)
    return pages_of(folder)


def pages_of(folder: Path) -> dict[str, Page]:
    """The pages of the site of a folder's history."""
    site = folder / "site"
    assert cli.main(["dashboard", "--history", str(folder / "h"), "--out", str(site)]) == 0
    return {str(path.relative_to(site)): Page(path) for path in site.rglob("*.html")}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Page]:
    return published(tmp_path_factory.mktemp("plain"))


def test_what_nobody_recorded_is_not_said_to_be_unchanged(pages: dict[str, Page]) -> None:
    sentence = "no version, commit or machine was recorded"
    assert f"since 2026-01-03; {sentence}" in pages["index.html"].words
    last = max(path for path in pages if path.startswith("run/"))
    assert f"the run before it on this stack: {sentence}." in pages[last].words


def test_lanes_have_a_column_only_where_there_are_some(
    pages: dict[str, Page], tmp_path: Path
) -> None:
    head = re.compile(r"<th[^>]*>(?:<bdi>)?(Lanes?|Topology|none)<")
    with_head = {path for path, page in pages.items() if head.search(page.path.read_text())}
    assert with_head == set()
    assert "lane" not in pages["coverage.html"].words
    example(tmp_path / "h", 2)
    by_path = pages_of(tmp_path)
    assert head.search(by_path["cases.html"].path.read_text())
    assert "Cheapest lane" in by_path["coverage.html"].words


def test_the_menu_leads_to_pages_with_content(pages: dict[str, Page]) -> None:
    menu = pages["index.html"].text.partition("Find a case")[0].split("\n")
    assert {"Sensitivity", "Upstream issues", "Plugins"}.isdisjoint(menu)
    assert {"Tonight", "Failures", "Coverage", "Compare"} <= set(menu)


def test_the_counts_of_a_run_add_up(pages: dict[str, Page]) -> None:
    rows = re.findall(r"<tr data-stack=.*?</tr>", pages["runs.html"].path.read_text(), re.DOTALL)
    assert len(rows) == 3
    for row in rows:
        cells = [re.sub("<[^>]+>", "", cell) for cell in re.findall("<td[^>]*>(.*?)</td>", row)]
        size, *parts = map(int, cells[1:6])
        assert size == sum(parts) == 10
    sentence = "have 10 outcomes: 6 work, 1 expected failure, 2 unexpected, 1 skipped."
    assert sentence in pages["index.html"].words


def test_each_row_of_the_runs_leads_to_its_page(pages: dict[str, Page]) -> None:
    links = {unquote(target) for _, target in pages["runs.html"].links()}
    assert {path for path in pages if path.startswith("run/")} <= links


def test_of_many_cases_only_those_with_news_have_a_page(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(page_maker, "MOST_CASES", 9)
    monkeypatch.setattr(page_maker, "OWN_PAGES", 3)
    pages = published(tmp_path)
    own = {
        path[5:-18]
        for path in pages
        if path.startswith("case/") and len(path) > len("case/ab.html")
    }
    assert own == {"test_broken", "test_known", "test_passes_again"}
    shared = [case for page in pages.values() for case in page.cases.values() if case]
    names = {case.name.partition("::")[2] for case in CASES}
    assert {case["name"].partition("::")[2] for case in shared} == names - own
    more = "... and 7 more cases that passed, or were skipped, in each of these nights"
    assert more in pages["cases.html"].words
    assert more in pages["search.html"].words
    assert "test_steady[5]" not in pages["cases.html"].words
    cell = next(page for path, page in pages.items() if path.startswith("cell/"))
    assert "test_steady[5]" in cell.words
    dead = []  # no link leads to a page that is not there, or to a case that its page does not have
    for path, page in pages.items():
        for _, target in page.links():
            parts = urlsplit(unquote(target))
            if parts.scheme or not parts.path or path == "404.html":
                continue
            place = os.path.normpath(Path(path).parent / parts.path)
            other = pages.get(place) if parts.fragment else None
            if not (tmp_path / "site" / place).exists() or (
                other and parts.fragment not in {*other.ids, *other.cases}
            ):
                dead.append((path, target))
    assert dead == []
