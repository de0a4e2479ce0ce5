"""Cases that share a page: the script shows of each what a page of its own shows."""

from __future__ import annotations

from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest
from support.browser import served
from support.pages import Page
from support.site_nights import Told, example, fails, write

from harness import cli
from harness.dashboard import page_maker
from harness.render import page_names

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from playwright.sync_api import Page as Tab

LONG = f"suites/spmd/test_specs.py::test_{'very_long_' * 30}{'x' * 300}[cpu-4]"


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The site of a history with a page for each case, and the one with none."""
    folder = tmp_path_factory.mktemp("sites")
    example(folder / "history", last=4)
    wrong = fails(f"AssertionError: {'y' * 900}\n{'z ' * 400}")
    write(folder / "history", [Told(LONG, becomes=lambda night: wrong)], [4], ["2.10.0"])
    with pytest.MonkeyPatch.context() as patch:
        for name, most in (("own", page_maker.OWN_PAGES), ("shared", 0)):
            patch.setattr(page_maker, "OWN_PAGES", most)
            arguments = ["--history", str(folder / "history"), "--out", str(folder / name)]
            assert cli.main(["dashboard", *arguments]) == 0
    return folder / "own", folder / "shared"


def shared_address(site: Path, own: Path) -> str:
    """Where a site has the case whose page of its own on another site is ``own``."""
    page = page_names.shared_page(own.stem)
    return f"{(site / page).as_uri()}#{own.stem}"


@pytest.mark.long
def test_the_script_shows_what_a_page_of_its_own_shows(sites: tuple[Path, Path], page: Tab) -> None:
    own_pages = sorted((sites[0] / "case").iterdir())
    assert len(own_pages) == 31
    for own in own_pages:
        page.goto(own.as_uri())
        title, static = page.title(), page.locator("main").inner_html()
        page.goto(shared_address(sites[1], own))
        page.locator("#again").wait_for()
        assert page.locator("main").inner_html().strip() == static.strip()
        assert page.title() == title


def test_a_shared_page_shows_what_is_broken_without_script(
    sites: tuple[Path, Path], silent: Tab
) -> None:
    own = next((sites[0] / "case").glob("test_regressed-*"))
    silent.goto(shared_address(sites[1], own))
    summary = silent.locator(f"#{own.stem}")
    assert "test_regressed[cpu-4]" in summary.inner_text()
    assert "AssertionError: numbers: 3 of 8 differ" in summary.inner_text()
    assert "First seen 2026-01-05; no version, commit or machine changed." in summary.inner_text()
    assert silent.get_by_text("JavaScript shows the others too").is_visible()


def test_what_a_shared_page_has_without_script(sites: tuple[Path, Path]) -> None:
    """Every case that broke or changed, and none that is quiet."""
    pages = [Page(path) for path in (sites[1] / "case").iterdir()]
    summaries = {
        id_ for page in pages for id_ in page.ids if id_ not in ("main", "search", "cases")
    }
    cases = {slug: case for page in pages for slug, case in page.cases.items() if case}
    worth = {
        slug
        for slug, case in cases.items()
        if case["verdicts"] or {each["outcome"] for each in case["series"]} - {"passed", "skipped"}
    }
    assert worth <= summaries < cases.keys()
    assert not any("test_sum[" in cases[slug]["name"] for slug in summaries)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_very_long_name_fits_a_phone(
    sites: tuple[Path, Path], page: Tab, scheme: Literal["light", "dark"]
) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    page.emulate_media(color_scheme=scheme)
    own = next((sites[0] / "case").glob("test_very_long_*"))
    lists = [path for site in sites for path in site.glob("[!4]*.html")]
    lists += [
        path for site in sites for kind in ("run", "cell") for path in (site / kind).iterdir()
    ]
    shared = shared_address(sites[1], own)
    addresses = [own.as_uri(), shared.partition("#")[0], shared]
    for address in (*addresses, *(path.as_uri() for path in lists)):
        page.goto(address)
        if address == shared:
            page.locator("#again").wait_for()
        wider = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wider <= 0, f"{address} is {wider} pixels wider than the screen"


def test_a_case_that_moved_is_led_to(sites: tuple[Path, Path], browser: Browser) -> None:
    """A server shows 404.html for a page that is gone, as GitHub Pages does."""
    page = browser.new_page()
    own = next((sites[0] / "case").glob("test_flaky-*"))
    statuses: list[int] = []
    page.on("response", lambda response: statuses.append(response.status))
    with served(sites[1]) as address:
        page.goto(f"{address}case/{own.name}")
        page.locator("#again").wait_for()
        assert page.locator("h1").inner_text().endswith("test_flaky[cpu-4]")
        assert page.url.endswith(f"#{own.stem}")
        page.goto(f"{address}run/gone.html")
        assert page.locator("h1").inner_text() == "No such page"
        page.get_by_role("link", name="Search").click()
        page.get_by_role("heading", name="Search").wait_for()
    assert statuses.count(HTTPStatus.NOT_FOUND) == 2
    page.close()
