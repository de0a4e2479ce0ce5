"""What a history costs: recording beside junitparser alone, and the questions of a first screen.

Writes NIGHTS x STACKS runs of CASES cases, then asks about the last run of each stack. Reading and
recording take one core, DuckDB as many as there are.
Usage: ``uv run benchmarks/history.py [--nights 1000] [--stacks 10] [--cases 1000] [--keep DIR]``.
"""

from __future__ import annotations

import argparse
import math
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar
from xml.sax.saxutils import quoteattr

import duckdb
import pyarrow.parquet as pq
from junitparser.xunit2 import JUnitXml

from harness.history.format import check_bytes, encoded
from harness.history.names import RunFile
from harness.history.run import Run, read_run
from harness.history.storage import Folder
from harness.history.store import History
from harness.junit.properties import FORMAT, VERSIONS
from harness.junit.result import Result
from harness.model.outcome import Kind
from harness.verdicts.nightly import judge
from harness.verdicts.rules import ask_about, statement

FIRST = datetime(2024, 1, 1, 2, 30, tzinfo=UTC)
LANES = (("cpu", "4"), ("virtual-tpu", "2x4"))
VARIANTS = 7  # different nights, which come again and again
REPORTS = 20  # that are read for each figure
DAYS = 60  # of history that the first screen looks at
HEAT_MAP = """
SELECT area, stack, lane,
    avg(CASE WHEN outcome IN ('passed', 'unexpected pass') THEN 1.0 ELSE 0 END)
        FILTER (run IN (SELECT run FROM asked)) AS now,
    avg(CASE WHEN outcome IN ('passed', 'unexpected pass') THEN 1.0 ELSE 0 END) AS lately
FROM cases WHERE outcome <> 'skipped' GROUP BY ALL ORDER BY ALL
"""
Answer = TypeVar("Answer")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("nights", 1000), ("stacks", 10), ("cases", 1000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--keep", type=Path, help="keep the history here, or use the one there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        _record(Path(folder), options.cases)
        history = History(options.keep or Path(folder) / "history")
        if not history.files.listed().places:
            _generate(history, options.nights, options.stacks, options.cases)
        _ask(history)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory {peak:.0f} MB")


def _record(folder: Path, count: int) -> None:
    """Time reading and recording, each next to junitparser on the same reports."""
    chance = random.Random(1)
    paths = [folder / f"{number}.xml" for number in range(REPORTS)]
    for number, path in enumerate(paths):
        path.write_text("".join(_report(number, count, chance)), encoding="utf-8")
    size = paths[0].stat().st_size
    print(f"{REPORTS} reports of {count} cases, {size / count:.0f} bytes a case")
    history = History(folder / "recorded")
    sides: dict[str, Callable[[Path], object]] = {
        "junitparser alone": _junitparser,
        "read as a stream": read_run,
        "record": lambda path: history.record([path]),
        "record again": lambda path: history.record([path]),
    }
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for path in paths:
        for name, side in sides.items():
            start = time.perf_counter()
            side(path)
            rates[name].append(count / (time.perf_counter() - start))
    for name, figures in rates.items():
        print(f"  {name:<20}{statistics.median(figures):>10,.0f} cases/s")


def _junitparser(path: Path) -> int:
    """Read what a reader based on junitparser needs: each case's outcome, time and properties."""
    suites: Any = JUnitXml.fromfile(str(path))
    known = [
        (case.name, case.classname, case.time, [type(entry) for entry in case.result],
         {entry.name: entry.value for entry in case.properties()})
        for suite in suites
        for case in suite
    ]  # fmt: skip
    return len(known)


def _report(number: int, count: int, chance: random.Random) -> Iterator[str]:
    """Yield a report like those of the suites, with the properties that most cases have."""
    time_ = (FIRST + timedelta(days=number)).isoformat()
    yield f'<testsuites><testsuite name="pytest" timestamp="{time_}" hostname="h"><properties>'
    yield _property("xla_harness_report", FORMAT) + _property("stack", "2.9.0")
    yield "".join(_property(name, "1.2.3") for name in VERSIONS) + "</properties>"
    for case in _cases(count, chance):
        name = case.id.rpartition("::")[2]
        yield f"<testcase classname='a.b' name={quoteattr(name)} time='{case.duration:.3f}'>"
        entries = {"id": case.id, "area": case.area, "lane": case.lane, "topology": case.topology}
        entries |= dict.fromkeys(("outcome", "actual"), str(case.outcome))
        entries |= {"upstream": "pytorch/xla#8854", **case.properties}
        if case.message:
            entries |= {"failure": case.message, "layer": case.layer}
        properties = "".join(_property(key, value) for key, value in entries.items())
        yield f"<properties>{properties}</properties>"
        if case.message:
            yield f"<failure message={quoteattr(case.message)}>{case.message * 5}</failure>"
        yield "</testcase>"
    yield "</testsuite></testsuites>"


def _property(name: str, value: str) -> str:
    return f"<property name={quoteattr(name)} value={quoteattr(value)} />"


def _cases(count: int, chance: random.Random) -> tuple[Result, ...]:
    """One night: two cases in a hundred fail, of these one at random."""
    return tuple(_case(number, chance) for number in range(count))


def _case(number: int, chance: random.Random) -> Result:
    lane, topology = LANES[number % 2]
    bad = number % 100 == 0 or chance.random() < 0.0001
    message = f"AssertionError: sums of group {number % 5} differ: {chance.random()}" if bad else ""
    file = f"suites/area_{number % 12}/test_file_{number % 40}.py"
    return Result(
        id=f"{file}::test_{number}[{lane}-{topology}]",
        area=f"area_{number % 12}",
        lane=lane,
        topology=topology,
        outcome=Kind.FAILED if bad else Kind.PASSED,
        expected=False,
        duration=0.1 * (1 + number % 30) * chance.gauss(1, 0.03),
        message=message,
        signature=f"AssertionError: sums of group {number % 5} differ: N" if bad else "",
        layer="numbers" if bad else "",
        upstream=("pytorch/xla#8854",),
        properties={"duration_body": "0.1", "discoveries": "1", "compilations": "3"},
    )


def _generate(history: History, nights: int, stacks: int, count: int) -> None:
    start = time.perf_counter()
    chance = random.Random(2)
    pool = [_cases(count, chance) for _ in range(VARIANTS)]
    files = Folder(Path(history.location), lasting=False)
    for night in range(nights):
        for stack in range(stacks):
            run = Run(
                time=FIRST + timedelta(days=night, minutes=stack),
                stack=f"2.{stack}.0",
                commit=f"{night:040x}",
                machine="h",
                versions=dict.fromkeys(VERSIONS, "1.2.3"),
                cases=pool[(night + stack) % VARIANTS],
                digest=f"{night * stacks + stack:064x}"[::-1],
            )
            place = RunFile(run.name, run.stack)
            files.add(place.name, encoded(run, place))
    seconds = time.perf_counter() - start
    results = nights * stacks * count
    print(f"{nights} nights x {stacks} stacks x {count} cases written: {results / seconds:,.0f}/s")


def _ask(history: History) -> None:
    _checksums(history)
    connection = _timed("connect", history.connect)
    places = history.files.listed().places
    newest = sorted({each.stack: each.run for each in sorted(places)}.values())
    print(f"{len(places)} runs; asked about the last of each of {len(newest)} stacks")
    cursor = _timed("  views", ask_about, connection, newest, DAYS)
    for name in ("changed", "died", "missing", "slower", "causes"):
        _timed(f"  {name}", _rows, cursor, statement(name))
    _timed("  heat map", _rows, cursor, HEAT_MAP)
    _timed("verdict on one run, with all of its stack's history", judge, connection, newest[-1:])
    case = cursor.execute('SELECT any_value("case") FROM cases').fetchone()
    sql = 'SELECT time, stack, outcome, duration FROM cases WHERE "case" = ? ORDER BY time'
    _timed("one case over all nights and stacks", _rows, connection, sql, case)


def _checksums(history: History) -> None:
    """Compare, in turns, verifying each byte with reading only the ends of the files."""
    sides = {
        "the ends of the files": lambda place: pq.read_schema(history.files.address(place.name)),
        "every byte, by checksum": lambda place: check_bytes(place, history.files.read(place.name)),
    }
    places = history.files.listed().places
    costs = dict.fromkeys(sides, math.inf)
    for _ in range(3):
        for name, side in sides.items():
            start = time.perf_counter()
            for place in places:
                side(place)
            costs[name] = min(costs[name], time.perf_counter() - start)
    for name, seconds in costs.items():
        print(f"  {name:<50}{seconds:>8.2f} s")
    first, second = costs.values()
    print(f"  ratio{second / first:>53.2f}")


def _rows(connection: duckdb.DuckDBPyConnection, sql: str, parameters: object = None) -> list[Any]:
    return connection.execute(sql, parameters).fetchall()


def _timed(name: str, question: Callable[..., Answer], *arguments: object) -> Answer:
    start = time.perf_counter()
    answer = question(*arguments)
    rows = f", {len(answer)} rows" if isinstance(answer, list) else ""
    print(f"{name:<52}{time.perf_counter() - start:>8.2f} s{rows}")
    return answer


if __name__ == "__main__":
    print(f"duckdb {duckdb.__version__}")
    main()
