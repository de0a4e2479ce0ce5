"""The search of every page, in a real Chromium and without JavaScript."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.pages import Page
from support.site_nights import HOSTILE, Told, example, fails, write

from harness import cli

if TYPE_CHECKING:
    from playwright.sync_api import Page as Tab

SIGNATURE = "ValueError: N of N ranks"  # of a failure that says 3 of 8


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("search")
    example(folder / "history", last=3)
    numbers = fails("ValueError: 3 of 8 ranks") | {"signature": SIGNATURE}
    once = Told("t.py::test_once", becomes=lambda night: numbers if night.number == 4 else {})
    write(folder / "history", [once], [4, 5], ["2.10.0"])
    arguments = ["--history", str(folder / "history"), "--out", str(folder / "site")]
    assert cli.main(["dashboard", *arguments]) == 0
    return folder / "site"


def search(page: Tab, text: str) -> list[tuple[str, str]]:
    """Kind and name of each row that is found for a text typed into the box in a page's head."""
    page.get_by_label("Find a case, an issue, a stack or a signature").fill(text)
    page.keyboard.press("Enter")
    page.wait_for_url("**/search.html?q=*")
    page.locator(".shown").filter(has_text="shown").wait_for()
    rows = page.locator("#results tbody tr:visible").all()
    return [(row.locator("td").first.inner_text(), row.locator("th").inner_text()) for row in rows]


CASES = "suites/collectives/test_sums.py::"
ABOUT_8854 = [
    ("issue", "pytorch/xla#8854"),
    ("case", f"{CASES}test_regressed[cpu-4]"),
    ("case", "suites/spmd/test_specs.py::test_known[cpu-4]"),
]


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("8854", ABOUT_8854),
        ("pytorch/xla#8854", ABOUT_8854),
        ("https://github.com/pytorch/xla/issues/8854", ABOUT_8854),
        ("2.10.0", [("stack", "2.10.0"), ("case", "t.py::test_once")]),
        ("torch_xla 2.10.0", [("stack", "2.10.0")]),
        (SIGNATURE, [("signature", SIGNATURE)]),
        ("ValueError: 3 of 8 ranks", [("signature", SIGNATURE)]),
        ("test_regressed", [("case", f"{CASES}test_regressed[cpu-4]")]),
        (f"{CASES}test_fixed[cpu-4]", [("case", f"{CASES}test_fixed[cpu-4]")]),
        ("nothing-has-this-name", []),
    ],
)
def test_search_finds(address: str, page: Tab, text: str, matches: list[tuple[str, str]]) -> None:
    page.goto(address + "runs.html")
    assert search(page, text) == matches


def test_the_example_in_the_box_finds_something(address: str, page: Tab) -> None:
    page.goto(address)
    example = page.locator("#search").get_attribute("placeholder")
    assert example == "pytorch/xla#8812"
    assert ("issue", example) in search(page, example)


@pytest.mark.parametrize(
    ("text", "leads", "says"),
    [
        ("8854", "**/issues.html?q=pytorch%2Fxla%238854", "1 of 4 shown"),
        ("2.10.0", "**/runs.html?stack=2.10.0", "2 of 10 shown"),
        ("SIGABRT", "**/failures.html#cause-sigabrt*", "SIGABRT in compile"),
        (SIGNATURE, "**/case/test_once-*.html#failures", "3 of 8 ranks"),
        ("test_regressed", "**/case/test_regressed-*.html", "1 distinct failure"),
    ],
)
def test_what_is_found_leads_to_its_page(
    address: str, page: Tab, text: str, leads: str, says: str
) -> None:
    page.goto(address)
    search(page, text)
    page.locator("#results tr:visible a").first.click()
    page.wait_for_url(leads)
    assert page.get_by_text(says).first.is_visible()


def test_the_search_works_on_pages_opened_from_a_disk(site: Path, page: Tab) -> None:
    page.goto((site / "index.html").as_uri())
    assert search(page, "test_regressed") == [("case", f"{CASES}test_regressed[cpu-4]")]


def test_without_script_everything_is_listed(address: str, silent: Tab) -> None:
    silent.goto(address + "search.html?q=8854")
    assert silent.get_by_text("Without JavaScript everything").is_visible()
    rows = silent.locator("#results tbody tr:visible")
    kinds = [row.get_attribute("data-kind") for row in rows.all()]
    assert [kinds.count(kind) for kind in ("stack", "issue", "case")] == [3, 4, 31]


def test_every_hostile_name_can_be_found_as_text(site: Path) -> None:
    text = Page(site / "search.html").text
    for planted in HOSTILE:
        assert not planted.name.isprintable() or (planted.name or "(no name)") in text
