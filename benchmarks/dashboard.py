"""The site of a generated history: how long it takes, what it needs, what the next night rewrites.

``uv run benchmarks/dashboard.py`` takes 1,000 nights of 10 stacks with 1,000 cases each;
``--nights``, ``--stacks`` and ``--cases`` make it smaller. Beside it junit2html makes pages of one
night's reports, if it is installed: ``uv run --with junit2html benchmarks/dashboard.py``. With
Chromium and Playwright it also opens the first page.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
from datetime import UTC, date, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from xml.sax.saxutils import quoteattr

import numpy as np
import pyarrow as pa

from harness.history.format import FORMAT, SCHEMA, with_checksum
from harness.history.names import RunFile, run_name
from harness.history.storage import Folder
from harness.junit.properties import VERSIONS

ROOT = Path(__file__).parent.parent
FIRST = date(2024, 1, 1)
AREAS = ("collectives", "dtensor", "spmd_specs", "multislice_flash_attention", "fsdp", "pallas")
MESSAGES = ("AssertionError: numbers: 3 of 8 differ", "XlaRuntimeError: INVALID_ARGUMENT: shape")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nights", type=int, default=1000)
    parser.add_argument("--stacks", type=int, default=10)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument(
        "--news", type=float, default=0.1, help="share of cases that fail as expected"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCHMARK_FOLDER")) as folder:
        history, site = Path(folder) / "history", Path(folder) / "site"
        start = time.monotonic()
        for night in range(options.nights):
            record(history, night, options)
        size = options.nights * options.stacks * options.cases
        print(f"{size:,} results generated in {time.monotonic() - start:.0f} s")
        first = publish(history, site)
        print("the whole site     ", first)
        record(history, options.nights, options)
        print("the next night     ", publish(history, site))
        print("the same again     ", publish(history, site))
        peer(Path(folder), options)
        browser(site)


def record(history: Path, night: int, options: argparse.Namespace) -> None:
    """Record a run of each stack: passes, flakes, failures that begin and end, skips, drifting
    times.

    Every 20 nights another libtpu breaks some cases and repairs those that the one before broke.
    """
    when = FIRST + timedelta(night)
    started = datetime(when.year, when.month, when.day, 2, 30, tzinfo=UTC)
    for stack in range(options.stacks):
        name = f"2.{10 - options.stacks + stack}.0"
        digest = sha256(f"{night} {stack}".encode()).hexdigest()
        place = RunFile(run_name(started, options.cases, digest), name)
        content = with_checksum(table(place, started, night, options), place)
        Folder(history, lasting=False).add(place.name, content)


def table(place: RunFile, started: datetime, night: int, options: argparse.Namespace) -> pa.Table:
    """Return the rows of one run."""
    stack, cases, news = place.stack, options.cases, options.news
    random = np.random.default_rng([night, *stack.encode()])
    steady = np.random.default_rng([*stack.encode()])  # the same every night
    number = np.arange(cases)
    known = steady.random(cases) < news
    skipped = (steady.random(cases) < 0.03) & ~(known & (news == 1))
    breaks = steady.integers(0, 3000, cases)
    libtpu = night // 20
    broken = (libtpu > 0) & (number % 100 == libtpu % 100)
    broken |= ((night >= breaks) & (night < breaks + 20)) | (random.random(cases) < 0.0005)
    outcome = np.select(
        [skipped, known, broken], ["skipped", "expected failure", "failed"], "passed"
    )
    wrong = (outcome == "failed") | (outcome == "expected failure")
    message = np.where(wrong, np.array(MESSAGES)[number % 2], "")
    names = {
        "case": [f"suites/{AREAS[n % 6]}/test_{n % 40}.py::test_{n}[cpu-4]" for n in number],
        "area": [AREAS[n % 6] for n in number],
        "properties": [
            [("discoveries", "1"), ("executions", str(n % 7)), ("duration_body", "0.1")]
            for n in number
        ],
        "upstream": [[f"pytorch/xla#{8000 + n % 30}"] for n in number],
    }
    same = {
        "format": FORMAT,
        "run": place.run,
        "time": started,
        "commit": f"{night:07x}",
        "machine": "lab",
    }
    same |= dict.fromkeys(VERSIONS, "") | {"torch": stack, "torch_xla": stack}
    same |= {"libtpu": f"0.0.{20 + libtpu}", "python": "3.11.7"}
    same |= {"lane": "cpu", "topology": "4", "layer": "", "rerun": 0}
    own = {
        "outcome": outcome,
        "expected": known,
        "duration": 0.1 + (number % 50) / 25 + random.normal(0, 0.01, cases),
        "message": message,
        "signature": message,
    }
    columns = {
        field.name: pa.repeat(pa.scalar(same[field.name], field.type), cases)
        if field.name in same
        else pa.array(own.get(field.name, names.get(field.name)), field.type)
        for field in SCHEMA
    }
    return pa.table(columns, schema=SCHEMA)


def publish(history: Path, site: Path) -> str:
    """Run the command in its own process; print seconds, peak memory, files and their size."""
    command = [sys.executable, "-m", "harness", "dashboard", "--history", str(history)]
    start = time.monotonic()
    process = subprocess.Popen(
        [*command, "--out", str(site)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(process.returncode)
    seconds = time.monotonic() - start
    size = sum(path.stat().st_size for path in site.rglob("*") if path.is_file()) / 1e6
    files = re.search(r"(\d+) files, (\d+) new", output)
    assert files is not None
    memory = usage.ru_maxrss / 1000
    used = f"{seconds:6.1f} s, {usage.ru_utime + usage.ru_stime:.0f} of processors"
    return f"{used}  {memory:6.0f} MB  {files[1]} files of {size:.0f} MB, {files[2]} new or changed"


def peer(folder: Path, options: argparse.Namespace) -> None:
    """Measure junit2html on one night's reports; it has no history."""
    if importlib.util.find_spec("junit2htmlreport") is None:
        print("junit2html          not installed")
        return
    start = time.monotonic()
    for stack in range(options.stacks):
        place = RunFile("", f"2.{stack}.0")
        rows = table(place, datetime.now(UTC), options.nights, options)
        report = folder / f"{stack}.xml"
        report.write_text(junit(rows), encoding="utf-8")
    start = time.monotonic()
    for stack in range(options.stacks):
        command = [sys.executable, "-m", "junit2htmlreport"]
        files = [str(folder / f"{stack}.xml"), str(folder / f"{stack}.html")]
        subprocess.run([*command, *files], check=True, stdout=subprocess.DEVNULL)
    print(
        f"junit2html          {time.monotonic() - start:6.1f} s  one night, {options.stacks} pages"
    )


def junit(rows: pa.Table) -> str:
    """Return the same results as a JUnit report."""
    cases = []
    for row in rows.select(["case", "outcome", "duration", "message"]).to_pylist():
        kind = {"failed": "failure", "passed": ""}.get(row["outcome"], "skipped")
        inner = f"<{kind} message={quoteattr(row['message'])}/>" if kind else ""
        name = quoteattr(row["case"])
        cases.append(
            f'<testcase classname="a" name={name} time="{row["duration"]:.3f}">{inner}</testcase>'
        )
    suite = f'<testsuite name="a" tests="{len(cases)}">{"".join(cases)}</testsuite>'
    return f"<testsuites>{suite}</testsuites>"


def browser(site: Path) -> None:
    """Open the first page in Chromium: print its bytes, and seconds until it can be used."""
    sys.path.insert(0, str(ROOT / "tests"))
    from support.browser import ARGUMENTS, CHROMIUM, LOADED, served

    if not CHROMIUM.exists() or importlib.util.find_spec("playwright") is None:
        print("first page          no browser")
        return
    from playwright.sync_api import sync_playwright

    with served(site) as address, sync_playwright() as driver, tempfile.TemporaryDirectory() as own:
        context = driver.chromium.launch_persistent_context(
            own, executable_path=str(CHROMIUM), args=ARGUMENTS
        )
        page = context.pages[0]
        page.set_viewport_size({"width": 1200, "height": 900})
        page.goto(address, wait_until="load")
        timing = "performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd"
        milliseconds = page.evaluate(timing)
        size = page.evaluate(LOADED)
        context.close()
    print(f"first page          {size / 1000:.0f} kB, interactive in {milliseconds:.0f} ms")


if __name__ == "__main__":
    main()
