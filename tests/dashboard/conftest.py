"""Debian's Chromium, for the tests of the site that need it, and a server of the site."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.browser import ARGUMENTS, CHROMIUM, served

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    with served(site) as url:
        yield url


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not CHROMIUM.exists():
        pytest.skip(f"no browser: {CHROMIUM}: run .ci/browser")
    playwright = pytest.importorskip("playwright.sync_api", reason="no browser: playwright")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page that fails the test for anything on its console and any request that goes outside."""
    page = browser.new_page()
    page.set_default_timeout(20_000)
    faults: list[str] = []
    page.on("console", lambda message: faults.append(message.text))
    page.on("pageerror", lambda error: faults.append(str(error)))

    def check(address: str) -> None:
        if not address.startswith(("http://127.0.0.1:", "file://")):
            faults.append(address)

    page.on("request", lambda request: check(request.url))
    yield page
    page.close()
    assert faults == []


@pytest.fixture
def silent(browser: Browser) -> Iterator[Page]:
    """A page of a browser without JavaScript."""
    context = browser.new_context(java_script_enabled=False)
    context.set_default_timeout(20_000)
    yield context.new_page()
    context.close()
