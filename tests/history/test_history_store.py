"""A history on the disk and elsewhere: nothing is lost or half-written."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.commands import run_program
from support.junit_text import case, report
from support.paths import ROOT

from harness.errors import BadInputError
from harness.history.format import FORMAT, SCHEMA
from harness.history.run import RunMetadata
from harness.history.store import History

REAL = sorted((ROOT / "fixtures" / "junit").glob("*.xml"))
HOSTILE = ROOT / "fixtures" / "junit" / "hostile"
COUNT = "SELECT count(*) FROM cases"


def asked(history: History, sql: str = COUNT) -> list[tuple[Any, ...]]:
    return history.ask(lambda connection: connection.execute(sql).fetchall())


def command(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "harness", *arguments]
    return subprocess.run(line, capture_output=True, text=True, check=False, **options)


def content(folder: Path) -> dict[str, bytes]:
    """All files, so that a change of any shows."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture
def history(tmp_path: Path) -> History:
    """One with a run of each of the real reports."""
    recorded = History(tmp_path / "history")
    recorded.record(REAL)
    return recorded


def test_what_is_recorded_is_what_sql_gives_back(history: History) -> None:
    rows = asked(history, "SELECT stack, lane, count(*), count(DISTINCT run) FROM cases "
                 "GROUP BY ALL ORDER BY ALL")  # fmt: skip
    lanes = [
        (stack, lane) for stack in ("2.5.1", "2.8.0", "2.9.0") for lane in ("cpu", "virtual-tpu")
    ]
    assert rows == [(*each, 200, 1) for each in lanes]
    description = history.connect().execute("SELECT * FROM cases LIMIT 0").description
    assert [name for name, *_ in description or ()] == [*SCHEMA.names, "date", "stack"]
    case = asked(
        history,
        "SELECT c.date::VARCHAR, c.torch_xla, c.layer, c.upstream, c.properties['executions'], "
        "c.expected, typeof(c.time) FROM cases c WHERE c.stack = '2.5.1' "
        "AND c.lane = 'virtual-tpu' AND c.outcome = 'expected failure' ORDER BY c.case LIMIT 1",
    )
    assert case == [("2026-11-21", "2.5.1", "export", ["pytorch/xla#8854"], "0", True, "TIMESTAMP")]


def test_properties_are_cut_and_versions_are_columns(tmp_path: Path) -> None:
    history = History(tmp_path / "history")
    long = case("b", python="3.11.7", note="x" * 3000)
    history.record([report(tmp_path / "report.xml", long)])
    ((kept,),) = asked(history, "SELECT properties FROM cases")
    assert dict(kept) == {"actual": "passed", "note": "x" * 2000}


def test_the_same_again_changes_nothing(history: History) -> None:
    before = content(Path(history.location))
    assert not any(recorded.new for recorded in history.record(REAL, RunMetadata(commit="other")))
    assert content(Path(history.location)) == before
    assert len(before) == len(REAL)


def test_layout_of_the_file_does_not_count(tmp_path: Path) -> None:
    """The same report with other white space, order of attributes and quotes is the same run."""
    text = REAL[0].read_text().replace("\n<testcase", "\n\n   <testcase")
    (tmp_path / "spaced.xml").write_text(text.replace('" />', '"/>'))
    (tmp_path / "other.xml").write_text(text.replace('time="0.', 'time="1.', 1))
    history = History(tmp_path / "history")
    records = history.record([REAL[0], tmp_path / "spaced.xml", tmp_path / "other.xml"])
    assert [recorded.new for recorded in records] == [True, False, True]


def test_one_bad_report_costs_itself(tmp_path: Path) -> None:
    bad = HOSTILE / "truncated.xml"
    target = tmp_path / "history"
    done = command("record", str(REAL[0]), str(bad), "--history", str(target))
    assert done.returncode == 3
    assert f"left out: {bad}: expected a JUnit report" in done.stderr
    assert "Traceback" not in done.stderr
    assert asked(History(target)) == [(200,)]


def test_only_bad_reports_and_nothing_is_written(tmp_path: Path) -> None:
    bad = [str(HOSTILE / name) for name in ("truncated.xml", "negative_seconds.xml")]
    target = tmp_path / "history"
    done = command("record", *bad, "--history", str(target))
    assert done.returncode == 2
    assert all(f"{path}: " in done.stderr for path in bad)
    assert not target.exists()


def test_names_that_are_paths_lead_nowhere(tmp_path: Path) -> None:
    target = tmp_path / "his'tory [x]*"
    history = History(target)
    (recorded,) = history.record([HOSTILE / "text_of_all_kinds.xml"])
    assert set(tmp_path.iterdir()) == {target}
    assert len(content(target)) == 1
    assert "/stack=..%2F..%2F..%2Fetc%2F2.10%2Bx%3D%221%22/" in recorded.name
    rows = asked(history, 'SELECT DISTINCT stack, count(*), max("case") FROM cases GROUP BY ALL')
    assert rows[0][:2] == ('../../../etc/2.10+x="1"', 5)
    texts = asked(history, 'SELECT "case" FROM cases WHERE "case" LIKE \'%DROP%\'')
    assert texts == [("tests/test_x.py::test_d['; DROP TABLE cases; --]",)]


@pytest.mark.parametrize("stack", ["2.10", "0210", "2026-01-01", "null"])
def test_stack_is_text_whatever_it_looks_like(tmp_path: Path, stack: str) -> None:
    history = History(tmp_path)
    history.record(REAL[:1], RunMetadata(stack=stack))
    assert asked(history, "SELECT DISTINCT stack, date::VARCHAR FROM cases") == [
        (stack, "2026-11-21")
    ]


def test_together_is_one_run(tmp_path: Path) -> None:
    done = command("record", "--together", "--history", str(tmp_path), *map(str, REAL[:2]))
    assert done.returncode == 0, done.stderr
    assert asked(History(tmp_path), "SELECT count(DISTINCT run), count(*) FROM cases") == [(1, 400)]


def recorded_in_a_process(folder: str, report: str) -> int:
    return sum(each.new for each in History(folder).record([Path(report)]))


def test_recorders_at_once_lose_nothing(tmp_path: Path) -> None:
    """Eight processes with six reports, some the same: each run is one file, added once."""
    reports = [*REAL, *REAL[:2]] * 2
    with ProcessPoolExecutor(8) as pool:
        new = pool.map(recorded_in_a_process, [str(tmp_path / "h")] * 16, map(str, reports))
        assert sum(new) == len(REAL)
    runs = asked(History(tmp_path / "h"), "SELECT DISTINCT run FROM cases")
    assert {Path(name).stem for name in content(tmp_path)} == {run for (run,) in runs}


KILLED = """\
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from harness.history.store import History
from harness.history.run import RunMetadata
history = History(sys.argv[1])
for second in range(10_000):
    time = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=second)
    history.record([Path(sys.argv[2])], RunMetadata(time=time))
    print(second, flush=True)
"""


def test_killed_at_any_moment(tmp_path: Path) -> None:
    """What was said to be recorded is there, whole; the next recorder goes on."""
    chance = random.Random(9)
    small = tmp_path / "small.xml"
    small.write_text('<testsuite><testcase name="a"/></testsuite>')
    counted = 0
    for _ in range(4):
        line = [sys.executable, "-c", KILLED, str(tmp_path / "h"), str(small)]
        with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout
            process.stdout.readline()
            time.sleep(chance.uniform(0.01, 0.3))
            process.send_signal(signal.SIGKILL)
            counted = max(counted, *(int(text) for text in process.stdout.read().split()), 0)
        history = History(tmp_path / "h")
        ((count,),) = asked(history)
        assert counted + 1 <= count <= counted + 2
        assert history.set_aside == ()


FULL = """\
import resource, signal, sys
from harness.cli import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
sys.exit(main(sys.argv[1:]))
"""


def test_no_room_on_the_disk(history: History) -> None:
    """A write that stops in the middle of the file, as on a full disk."""
    before = content(Path(history.location))
    line = ["record", str(REAL[0]), "--stack", "other", "--history", history.location]
    done = run_program(sys.executable, "-c", FULL, *line)
    assert done.returncode == 2, done.stderr
    assert "parquet: can't be written: File too large" in done.stderr
    assert content(Path(history.location)) == before


def test_history_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "h").write_text("")
    with pytest.raises(BadInputError, match="can't be written: Not a directory"):
        History(tmp_path / "h").record(REAL[:1])


@pytest.mark.parametrize("sql", ["SELECT 1 FROM nowhere", "SELEC", "SELECT '\x1b[2J'::INT"])
def test_query_that_is_none(history: History, sql: str) -> None:
    done = command("ci", "query", sql, "--history", history.location)
    assert done.returncode == 2
    assert done.stderr.startswith("xla-harness: SQL: ")
    assert done.stderr.rstrip("\n").isprintable()


def test_query(history: History) -> None:
    sql = "SELECT stack, chr(27) || outcome AS x, NULL FROM cases GROUP BY ALL ORDER BY ALL LIMIT 1"
    done = command("ci", "query", sql, "--history", history.location)
    assert done.stdout.splitlines() == ["stack  x                     NULL",
                                        "2.5.1  \\x1bexpected failure"]  # fmt: skip
    csv = command(
        "ci", "query", "SELECT 1 AS a, 'x,y' AS b", "--csv", "--history", history.location
    )
    assert csv.stdout.splitlines() == ["a,b", '1,"x,y"']


def test_time_that_is_none(tmp_path: Path) -> None:
    done = command("record", str(REAL[0]), "--time", "noon", "--history", str(tmp_path / "h"))
    assert done.returncode == 2
    assert "--time: expected ISO 8601" in done.stderr
    assert "'noon'" in done.stderr
    assert not (tmp_path / "h").exists()


def test_summary_that_cannot_be_written(history: History) -> None:
    line = ("verdict", "latest", "--history", history.location)
    done = command(*line, "--markdown", f"{history.location}/none/summary.md")
    assert done.returncode == 2
    assert "summary.md': expected a file in a folder that exists" in done.stderr


def test_no_history(tmp_path: Path) -> None:
    done = command("ci", "query", "SELECT 1", "--history", str(tmp_path / "none"))
    assert done.returncode == 2
    assert "expected a history with runs in it, found none" in done.stderr


# Files that can't be read


def damaged(path: Path, kind: str) -> None:
    whole = path.read_bytes()
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    broken = {
        "empty": b"",
        "cut": whole[:-100],
        "text": b"no Parquet",
        "footer": whole[: footer + 20] + bytes(300) + whole[footer + 320 :],
        "page": whole[:200] + bytes(b ^ 255 for b in whole[200:2200]) + whole[2200:],
    }
    path.chmod(0o644)
    path.write_bytes(broken[kind])


@pytest.mark.parametrize("kind", ["empty", "cut", "text", "footer", "page"])
def test_broken_file_is_set_aside(history: History, kind: str) -> None:
    name = history.files.listed().names[0]
    damaged(Path(history.location) / name, kind)
    assert asked(
        history, "SELECT count(*), max(message || c.case || lane) IS NULL FROM cases c"
    ) == [(1000, False)]
    assert [each.name for each in history.set_aside] == [name]
    done = command("ci", "query", 'SELECT count(*), max("case" || message) FROM cases',
                   "--history", history.location)  # fmt: skip
    assert done.stdout.splitlines()[1].startswith("1000")
    assert f"set aside: {name}: " in done.stderr


def test_all_files_broken(history: History) -> None:
    for name in history.files.listed().names:
        damaged(Path(history.location) / name, "cut")
    assert asked(history) == [(0,)]
    assert len(history.set_aside) == len(REAL)
    done = command("verdict", "latest", "--history", history.location)
    assert done.returncode == 2
    assert "can't be read" in done.stderr


def test_file_of_another_kind_is_set_aside(history: History) -> None:
    folder = Path(history.location) / "date=2026-11-21" / "stack=2.9.0"
    other = folder / "20261121T000000_000000Z-0000000-000000000000.parquet"
    pq.write_table(pa.table({"a": [1]}), other)
    assert asked(history) == [(1200,)]
    ((name, cause),) = ((each.name, each.cause) for each in history.set_aside)
    assert Path(name).name == other.name
    assert cause == "damaged, or of another kind: it has no checksum"


def test_file_of_another_format_is_set_aside(history: History) -> None:
    path = next(Path(history.location).rglob("*.parquet"))
    text = f"{FORMAT} ".encode() + re.findall(rb"[0-9a-f]{64}", path.read_bytes())[-1]
    path.chmod(0o644)
    path.write_bytes(path.read_bytes().replace(text, b"4" + text[1:]))
    assert asked(history) == [(1000,)]
    (file,) = history.set_aside
    assert file.cause == f"format 4: another xla-harness wrote it, this one reads {FORMAT}"


# Elsewhere than in a folder


def test_address_of_a_folder(tmp_path: Path) -> None:
    address = (tmp_path / "a b").as_uri()
    History(address).record(REAL[:1])
    assert asked(History(tmp_path / "a b")) == asked(History(address)) == [(200,)]


def test_object_store(history: History) -> None:
    """fsspec's own store in memory: the same answers as from the folder."""
    fsspec.filesystem("memory").store.clear()
    store = History("memory://bucket/history")
    assert [each.new for each in store.record(REAL)] == [True] * len(REAL)
    assert [each.new for each in store.record(REAL)] == [False] * len(REAL)
    assert store.files.listed().names == history.files.listed().names
    sql = 'SELECT * EXCLUDE (properties) FROM cases ORDER BY run, "case"'
    assert asked(store, sql) == asked(history, sql)
    fsspec.filesystem("memory").pipe_file(f"/bucket/history/{store.files.listed().names[0]}", b"x")
    assert asked(store) == [(1000,)]
    assert len(store.set_aside) == 1


def test_address_of_an_unknown_kind() -> None:
    with pytest.raises(BadInputError, match="nowhere://x: expected a folder or an address"):
        History("nowhere://x")
