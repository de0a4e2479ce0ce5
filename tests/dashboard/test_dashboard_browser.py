"""The site in a real Chromium: what it shows, what it refuses, who can read it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest
from support.browser import LOADED, served
from support.site_nights import example, moving

from harness import cli

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="no axe-core")

WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
FIRST_PAGE = 250_000  # bytes of the first page with all that it loads
INTERACTIVE = 1.0  # seconds


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser")
    example(folder / "history")
    arguments = ["--history", str(folder / "history"), "--out", str(folder / "site")]
    assert cli.main(["dashboard", *arguments]) == 0
    return folder / "site"


def kinds(site: Path) -> list[str]:
    """One page of each kind; the case is the hostile one."""
    single = sorted(path.name for path in site.glob("[!4]*.html"))
    script = next(p for p in site.glob("case/*.html") if "&lt;script&gt;" in p.read_text())
    first = [min(site.glob(f"{kind}/*.html")) for kind in ("cell", "run", "compare")]
    moved = next(site.glob("case/test_discovers-*.html"))
    return [*single, *(str(path.relative_to(site)) for path in (script, moved, *first))]


@pytest.mark.long
@pytest.mark.parametrize(("width", "scheme"), [(400, "light"), (1600, "dark")])
def test_every_kind_of_page_meets_wcag_aa(
    site: Path, address: str, page: Page, width: int, scheme: Literal["light", "dark"]
) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme)
    violations_by_path = {}
    for path in kinds(site):
        page.goto(address + path)
        answer = axe.Axe().run(page, options={"runOnly": WCAG}).response
        assert len(answer["passes"]) > 8
        if answer["violations"]:
            violations_by_path[path] = [
                (v["id"], v["nodes"][0]["html"]) for v in answer["violations"]
            ]
        wider = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wider <= 0, f"{path} is {wider} pixels wider than the screen"
    assert violations_by_path == {}


def test_axe_sees_what_is_wrong(site: Path, address: str, page: Page) -> None:
    page.goto(address)
    page.evaluate("document.querySelector('#search').labels[0].remove()")
    page.evaluate("document.querySelector('#search').placeholder = ''")
    answer = axe.Axe().run(page, options={"runOnly": WCAG}).response
    assert [violation["id"] for violation in answer["violations"]] == ["label"]


def test_hostile_names_do_nothing(site: Path, address: str, page: Page) -> None:
    for path in kinds(site):
        page.goto(address + path)
        assert "owned" not in page.title().split("·")[-1]
        assert page.evaluate("document.scripts.length") == (3 if path == "compare.html" else 1)


def test_the_policy_refuses_inline_script(site: Path, address: str, browser: Browser) -> None:
    page = browser.new_page()
    refused: list[str] = []
    page.on("console", lambda message: refused.append(message.text))
    page.goto(address)
    page.evaluate(
        "const s = document.createElement('script'); s.text = 'document.title = `owned`';"
        "document.body.append(s)"
    )
    assert page.title() != "owned"
    assert any("Content Security Policy" in text for text in refused)
    page.close()


def test_the_first_page_is_small_and_soon_there(address: str, page: Page, browser: Browser) -> None:
    pages = [browser.new_page(), browser.new_page(), page]  # each has a cache of its own
    seconds = []
    for each in pages:  # other tests share the machine
        start = time.monotonic()
        each.goto(address, wait_until="load")
        each.get_by_role("link", name="Failures").focus()
        seconds.append(time.monotonic() - start)
    for each in pages[:2]:
        each.close()
    assert min(seconds) < INTERACTIVE
    assert 20_000 < page.evaluate(LOADED) < FIRST_PAGE


def test_a_cell_leads_to_its_cases_in_one_click(address: str, page: Page) -> None:
    page.goto(address)
    page.locator(".heat a", has_text="92.9 %").first.click()
    assert page.locator("tbody th").first.inner_text().endswith("test_regressed[cpu-4]")


def test_reading_needs_no_script(address: str, silent: Page) -> None:
    silent.goto(address)
    assert silent.get_by_text("Since the night before").is_visible()
    silent.locator(".tile a", has_text="regressed").click()
    silent.locator("#regressed a.case").first.click()
    assert silent.get_by_role("heading", name="1 distinct failure").is_visible()
    silent.goto(address + "compare.html")
    assert silent.locator("form.filters").count() == 1
    assert not silent.locator("form.filters").is_visible()
    silent.locator(".pairs a").first.click()
    assert silent.get_by_text("regressed").first.is_visible()
    silent.goto(address + "cases.html?q=test_flaky")
    assert not silent.locator("form.filters").is_visible()
    assert silent.locator("tbody tr:visible").count() == 30


def test_filters_make_an_address_that_can_be_shared(address: str, page: Page) -> None:
    page.goto(address + "cases.html")
    page.get_by_label("Search").fill("test_sum[")
    page.get_by_text("12 of 30 shown").wait_for()
    page.get_by_label("Area").select_option("spmd")
    page.get_by_text("0 of 30 shown: none has all of this").wait_for()
    page.get_by_label("Search").fill("")
    page.get_by_text("6 of 30 shown").wait_for()
    page.get_by_role("button", name="Case").click()
    page.get_by_role("button", name="Case").click()
    shared = page.url
    names = page.locator("tbody tr:visible th").all_inner_texts()
    page.goto("about:blank")
    page.goto(shared)
    page.get_by_text("6 of 30 shown").wait_for()
    assert page.locator("tbody tr:visible th").all_inner_texts() == names
    assert names == sorted(names, reverse=True)
    page.get_by_role("button", name="Clear").click()
    page.get_by_text("30 of 30 shown").wait_for()
    assert "area" not in page.url


def test_numbers_sort_as_numbers(address: str, page: Page) -> None:
    page.goto(address + "slow.html")
    header = page.locator("#cases th", has_text="Duration")
    header.get_by_role("button").click()
    assert header.get_attribute("aria-sort") == "descending"
    values = page.locator("#cases tbody td.n").evaluate_all(
        "cells => cells.map(cell => Number(cell.dataset.value))"
    )
    assert values == sorted(values, reverse=True)
    assert values[0] == 1.5


def test_runs_are_compared_on_pages_opened_from_a_disk(site: Path, page: Page) -> None:
    page.goto((site / "compare.html").as_uri())
    page.get_by_role("button", name="Compare").click()
    page.get_by_text(" differ").wait_for()


def test_any_two_runs_are_compared(address: str, page: Page) -> None:
    page.goto(address + "compare.html")
    options = page.locator("[name=one] option").all_inner_texts()
    ours = [text for text in options if " 2.9.0 " in text]
    page.locator("[name=one]").select_option(label=ours[1])
    page.locator("[name=other]").select_option(label=ours[0])
    page.get_by_role("button", name="Compare").click()
    page.get_by_text("differ", exact=False).first.wait_for()
    rows = page.locator("#answer tbody tr").all_inner_texts()
    texts = {row.split("::")[-1].replace("\t", " ") for row in rows}
    assert "test_regressed[cpu-4] cpu 4 passed failed" in texts
    assert "test_missing[cpu-4] cpu 4 passed not run" in texts
    assert "test_fixed[cpu-4] cpu 4 failed passed" in texts
    page.goto(page.url)  # the address says which two
    page.locator("#answer tbody tr").first.wait_for()
    assert page.locator("#answer tbody tr").count() == len(rows)
    page.locator("#answer a", has_text="test_regressed").click()  # a row leads to its case
    page.locator("#cases tbody a:visible", has_text="test_regressed").click()
    assert page.locator("h1").inner_text().endswith("::test_regressed[cpu-4]")
    page.goto(address + "compare.html")
    same = page.locator("[name=one] option").first.get_attribute("value")
    page.goto(f"{address}compare.html?one={same}&other={same}")
    page.get_by_text(" outcomes are the same.").wait_for()


def test_runs_of_two_frameworks_show_what_moving_does(page: Page, tmp_path: Path) -> None:
    """The script pairs the cases as the pages made in Python do."""
    moving(tmp_path / "history")
    arguments = ["--history", str(tmp_path / "history"), "--out", str(tmp_path / "site")]
    assert cli.main(["dashboard", *arguments]) == 0
    with served(tmp_path / "site") as address:
        page.goto(address + "compare.html")
        for name, stack in (("one", " 2.9.0 "), ("other", " torch_tpu-0.2.0 ")):
            options = page.locator(f"[name={name}] option").all_inner_texts()
            chosen = next(text for text in options if stack in text)
            page.locator(f"[name={name}]").select_option(label=chosen)
        page.get_by_role("button", name="Compare").click()
        page.get_by_text("6 of 8 differ, moving from torch_xla to torch_tpu").wait_for()
        rows = page.locator("#effects tbody tr").all()
        sizes = [row.locator("th, td").all_inner_texts() for row in rows]
        page.locator("table.pairs a").first.click()
        published = page.locator("table.effects tbody tr").all()
        assert [row.locator("th, td").all_inner_texts() for row in published] == sizes
    assert sizes == [
        ["dtensor", "1", "1", "1", "1", "1", "1", "1"],
        ["spmd", "1", "", "", "", "", "", ""],
        ["all", "2", "1", "1", "1", "1", "1", "1"],
    ]


def test_the_keyboard_reaches_everything(address: str, page: Page) -> None:
    page.goto(address)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('main') !== null")
    page.goto(address + "cases.html")
    page.locator("th button").first.focus()
    page.keyboard.press("Enter")
    assert page.locator("th[data-sort]").first.get_attribute("aria-sort") == "ascending"
