"""Draw docs/dashboard.png: the first page of the site of the recorded reports in fixtures/junit.

``uv run benchmarks/picture.py [FILE]`` needs Chromium and Playwright.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.browser import ARGUMENTS, CHROMIUM, served  # noqa: E402


def main() -> None:
    """Record the reports, make the site, and take its picture."""
    target = Path(*sys.argv[1:2] or [f"{ROOT}/docs/dashboard.png"]).absolute()
    reports = sorted(str(path) for path in ROOT.glob("fixtures/junit/*.xml"))
    with tempfile.TemporaryDirectory() as folder:
        harness("record", *reports, "--history", f"{folder}/history")
        harness("dashboard", "--history", f"{folder}/history", "--out", f"{folder}/site")
        with served(Path(folder, "site")) as address, sync_playwright() as driver:
            context = driver.chromium.launch_persistent_context(
                f"{folder}/browser", executable_path=str(CHROMIUM), args=ARGUMENTS
            )
            page = context.pages[0]
            page.set_viewport_size({"width": 1200, "height": 900})
            page.goto(address, wait_until="load")
            page.screenshot(path=target)
            context.close()


def harness(*arguments: str) -> None:
    """Run ``xla-harness``; raises CalledProcessError if it fails."""
    subprocess.run([sys.executable, "-m", "harness", *arguments], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
