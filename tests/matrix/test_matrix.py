"""The matrix, qualification and bisection over real stacks that differ in one small package."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path

import pytest
from support.drift import GOOD, Drift

from harness.junit.report import read

PATHS = ("--lanes", "cpu")


def reports(drift: Drift, folder: str = "reports/matrix") -> list[str]:
    paths = (drift.path / folder).glob("*/*.xml")
    return sorted(path.parent.name for path in paths if not path.name.startswith("."))


@pytest.fixture(scope="module")
def matrix(shared_drift: Drift) -> tuple[Drift, str, str]:
    done = shared_drift.run("matrix", "--stacks", "1,3,5,6", "--json", "reports/all.json", *PATHS)
    assert done.returncode == 1, done.stderr
    return shared_drift, done.stdout, done.stderr


@pytest.mark.long
def test_the_result_as_json(matrix: tuple[Drift, str, str]) -> None:
    drift, _, _ = matrix
    data = json.loads((drift.path / "reports/all.json").read_text())
    assert data["no_answer"] == {}
    assert [stack["name"] for stack in data["stacks"]] == ["1", "3", "5", "6"]
    for stack in data["stacks"]:
        results = read(drift.path / "reports" / "matrix" / stack["name"] / "cpu.xml").results
        assert {c["case"]: c["outcome"] for c in stack["cases"]} == {
            key: str(result.outcome) for key, result in results.items()
        }


def test_each_cell_has_a_report_and_a_log(matrix: tuple[Drift, str, str]) -> None:
    drift, _, errors = matrix
    assert reports(drift) == ["1", "3", "5", "6"]
    for name in ("1", "3", "5", "6"):
        folder = drift.path / "reports" / "matrix" / name
        content = read(folder / "cpu.xml")
        assert content.stack == name
        assert len(content.results) == 6
        assert "6 cases" not in (folder / "cpu.log").read_text()
        assert f"{name} cpu: running, log in reports/matrix/{name}/cpu.log" in errors
        passed = sum(result.works for result in content.results.values())
        assert re.search(rf"^{name} cpu: {passed} passed\b.* \(\d+:\d\d\)$", errors, re.MULTILINE)


def test_the_overview_says_what_changes(matrix: tuple[Drift, str, str]) -> None:
    drift, output, _ = matrix
    assert all(len(line) <= 80 for line in output.splitlines())
    assert re.search(r"1 -> 3.*\n.*2 regressed", output) or "2 regressed" in output
    assert "drift" in output
    assert (drift.path / "reports" / "matrix" / "overview.md").read_text()


def test_what_is_answered_is_kept(matrix: tuple[Drift, str, str]) -> None:
    drift, output, _ = matrix
    report = drift.path / "reports" / "matrix" / "1" / "cpu.xml"
    before = report.stat().st_mtime_ns
    again = drift.run("matrix", "--stacks", "1,3,5,6", *PATHS)
    assert again.stdout == output
    assert report.stat().st_mtime_ns == before
    for stack in ("1", "3", "5", "6"):
        results = read(drift.path / "reports" / "matrix" / stack / "cpu.xml").results.values()
        bad = {result.id for result in results if result.outcome.is_bad}
        reused = {result.id for result in results if result.properties.get("reused")}
        assert not bad & reused
        assert bool(reused) == bool(bad) == (f"{stack} cpu: kept" not in again.stderr), stack


@pytest.mark.long
def test_another_question_is_asked_anew(shared_drift: Drift) -> None:
    out = ("--out", "reports/other")
    first = shared_drift.run("matrix", "--stacks", "1", *PATHS, *out, "--", "-k", "double")
    assert first.returncode == 0, first.stderr
    second = shared_drift.run("matrix", "--stacks", "1", *PATHS, *out, "--", "-k", "half")
    assert "kept" not in second.stderr
    assert len(read(shared_drift.path / "reports/other/1/cpu.xml").results) == 1
    suite = shared_drift.path / "suites" / "area" / "test_drift.py"
    text = suite.read_text()
    suite.write_text(f"{text}\n")
    third = shared_drift.run("matrix", "--stacks", "1", *PATHS, *out, "--", "-k", "half")
    suite.write_text(text)
    assert "kept" not in third.stderr


def test_only_edited_test_files_run_again(shared_drift: Drift) -> None:
    other = shared_drift.path / "suites" / "area" / "test_other.py"
    marks = "pytestmark = [pytest.mark.lanes('cpu'), pytest.mark.topologies(1)]\n"
    text = f"import pytest\n{marks}def test_kept(): pass\ndef test_gone(): pass\n"
    other.write_text(text)
    command = ("matrix", "--stacks", "1", *PATHS, "--out", "reports/partial")
    path = shared_drift.path / "reports/partial/1/cpu.xml"
    try:
        assert shared_drift.run(*command).returncode == 0
        before = read(path)
        other.write_text(text.replace("test_gone", "test_new"))
        again = shared_drift.run(*command)
        assert "[2 items]" in path.with_suffix(".log").read_text()
        after = read(path)
        assert "1 cpu: 7 passed, 1 skipped, 6 of them reused" in again.stderr
        assert "1 cpu: kept" in shared_drift.run(*command).stderr
        other.write_text(f"{text}def test_fails(): assert 0\n")
        assert shared_drift.run(*command).returncode == 1
        assert "[3 items]" in path.with_suffix(".log").read_text()
        other.unlink()
        assert shared_drift.run(*command).returncode == 0
    finally:
        other.unlink(missing_ok=True)
    assert {*before.results} ^ {*after.results} == {
        f"suites/area/test_other.py::{name}[cpu-1]" for name in ("test_gone", "test_new")
    }
    assert before.left_out == after.left_out
    reused = {key for key, result in after.results.items() if "reused" in result.properties}
    assert reused == {key for key in after.results if "test_drift" in key}
    assert {*read(path).results} == reused


@pytest.mark.long
def test_an_answer_is_to_the_sources_it_began_with(shared_drift: Drift) -> None:
    """What is edited while the cases run is asked anew, not taken for what they ran."""
    suite = shared_drift.path / "suites" / "area" / "test_edits.py"
    suite.write_text(
        "import pytest\n"
        "@pytest.mark.lanes('cpu')\n"
        "@pytest.mark.topologies(1)\n"
        "def test_edits(): open(__file__, 'a').write('# edited\\n')\n"
    )
    command = ("matrix", "--stacks", "1", *PATHS, "--out", "reports/edited", "--", "-k", "edits")
    first, second = shared_drift.run(*command), shared_drift.run(*command)
    suite.unlink()
    assert (first.returncode, second.returncode) == (0, 0), second.stderr
    assert "kept" not in second.stderr


@pytest.mark.long
def test_shards_make_the_whole(shared_drift: Drift) -> None:
    ids: list[str] = []
    for number in ("1/2", "2/2"):
        out = ("--shard", number, "--out", "reports/shards")
        done = shared_drift.run("matrix", "--stacks", "1", *PATHS, *out)
        assert done.returncode == 0, done.stderr
        results = read(shared_drift.path / f"reports/shards/1/cpu-{number[0]}of2.xml").results
        assert results
        ids += results
    assert len(ids) == len(set(ids)) == 6


@pytest.mark.long
def test_killed_matrix_continues(shared_drift: Drift) -> None:
    """What was answered is kept, no pytest of the killed command goes on, the rest is run."""
    slow = shared_drift.stack("7", GOOD.replace("SECONDS = 0", "SECONDS = 30"))
    out = ("--out", "reports/killed", "--jobs", "1")
    with shared_drift.start("matrix", "--stacks", "1,7", *PATHS, *out) as process:
        log = shared_drift.path / "reports" / "killed" / "7" / "cpu.log"
        end = time.monotonic() + 60
        while not (log.exists() and "%" in log.read_text()) and time.monotonic() < end:
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
    time.sleep(0.5)
    assert running_in(shared_drift.path) == []
    assert reports(shared_drift, "reports/killed") == ["1"]
    suite = shared_drift.path / "fixtures" / "stacks" / "7.toml"
    done = shared_drift.run("matrix", "--stacks", "1", *PATHS, *out)
    slow.unlink()
    suite.with_suffix(".txt").unlink()
    assert "1 cpu: kept" in done.stderr


def running_in(folder: Path) -> list[str]:
    """The command lines of processes that work in a folder."""
    folders = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").resolve() == folder and b"pytest" in (
                text := (process / "cmdline").read_bytes()
            ):
                folders.append(text.decode())
        except OSError:
            continue
    return folders


@pytest.mark.long
def test_two_commands_in_one_folder(shared_drift: Drift) -> None:
    shared_drift.stack("8", GOOD.replace("SECONDS = 0", "SECONDS = 8"))
    out = ("--out", "reports/raced")
    with shared_drift.start("matrix", "--stacks", "8", *PATHS, *out) as first:
        log = shared_drift.path / "reports" / "raced" / "8" / "cpu.log"
        end = time.monotonic() + 60
        while not log.exists() and time.monotonic() < end:
            time.sleep(0.05)
        second = shared_drift.run("matrix", "--stacks", "8", *PATHS, *out)
        first.send_signal(signal.SIGINT)
        first.communicate()
    for file in (shared_drift.path / "fixtures" / "stacks").glob("8.*"):
        file.unlink()
    assert second.returncode == 2
    assert "reports/raced/8: another command is writing there" in second.stderr


@pytest.mark.long
def test_a_cell_that_dies_does_not_stop_the_others(shared_drift: Drift) -> None:
    shared_drift.stack("9", "import os; os._exit(3)\n")
    done = shared_drift.run("matrix", "--stacks", "1,9", *PATHS, "--out", "reports/died")
    for file in (shared_drift.path / "fixtures" / "stacks").glob("9.*"):
        file.unlink()
    assert done.returncode == 2
    assert "9 cpu: no answer (exit code" in done.stderr
    assert "1 of 2 cells had no answer: 9 cpu; the same command runs only those" in done.stderr
    assert reports(shared_drift, "reports/died") == ["1"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("matrix", "--stacks", "1,11"), "stack '11': did you mean 1"),
        (("matrix", "--stacks", "1", "--lanes", "npu"), "lane 'npu': expected one of cpu"),
        (("matrix", "--stacks", "1", "--shard", "3/2"), "--shard '3/2': expected NUMBER/COUNT"),
        (("qualify", "1", "nowhere.xml"), "nowhere.xml: expected a JUnit report"),
        (("qualify", "1", "suites"), "suites: expected reports of xla-harness"),
        (
            ("ci", "list", "--", "-k", "x"),
            "ci list runs no other program: expected nothing after --",
        ),
        (("bisect", "suites/area/test_drift.py::test_hal", "--good", "1", "--bad", "5"), "mean"),
    ],
)
def test_bad_input(shared_drift: Drift, arguments: tuple[str, ...], message: str) -> None:
    done = shared_drift.run(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_qualify_names_the_component(shared_drift: Drift) -> None:
    done = shared_drift.run("qualify", "1", "3", *PATHS, "--markdown", "summary.md")
    assert done.returncode == 1, done.stderr
    assert "regressed: 2" in done.stdout
    assert "caused by drift" in done.stdout
    assert "a/b#1" in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    assert "drift" in (shared_drift.path / "summary.md").read_text()
    rerun = shared_drift.path / "reports/qualify/1..3/rerun-1/3/cpu.xml"
    assert len(read(rerun).results) == 2  # only what differs


@pytest.mark.parametrize(
    ("base", "candidate", "code", "message"),
    [
        ("1", "2", 0, "Qualified"),
        ("5", "1", 0, "fixed: 1"),
        ("6", "1", 1, "missing: 1"),
    ],
)
def test_qualify(shared_drift: Drift, base: str, candidate: str, code: int, message: str) -> None:
    done = shared_drift.run("qualify", base, candidate, *PATHS)
    assert (done.returncode, message in done.stdout) == (code, True), done.stdout + done.stderr


def test_qualify_of_two_reports(matrix: tuple[Drift, str, str]) -> None:
    drift, *_ = matrix
    done = drift.run("qualify", "reports/matrix/1/cpu.xml", "reports/matrix/3")
    assert done.returncode == 1
    assert "regressed: 2" in done.stdout
    assert "running" not in done.stderr


def test_signed_off(matrix: tuple[Drift, str, str]) -> None:
    drift, *_ = matrix
    allow = drift.path / "allow.toml"
    allow.write_text(
        '[[allow]]\ncases = ["*test_double*"]\nverdict = "regressed"\nreason = "known"\n'
        'signed_off_by = "somebody"\n'
    )
    done = drift.run("qualify", "reports/matrix/1", "reports/matrix/3", "--allow", "allow.toml")
    assert done.returncode == 0, done.stdout


@pytest.mark.long
def test_qualify_tells_flaky_cases_apart(shared_drift: Drift) -> None:
    """One that fails in its first run only, counted in a file beside the suite."""
    half = """\
import pathlib
count = pathlib.Path("count")
def half(n):
    with count.open("a") as file:
        file.write("x")
    return n // (2 if len(count.read_text()) > 1 else 1)
"""
    flaky = f"{GOOD}{half}"
    shared_drift.stack("10", flaky)
    done = shared_drift.run("qualify", "1", "10", *PATHS, "--", "-k", "half")
    for file in (shared_drift.path / "fixtures" / "stacks").glob("10.*"):
        file.unlink()
    assert "flaky: 1" in done.stdout, done.stdout + done.stderr
    first, final = done.stdout.split(" first answer ")
    assert "regressed: 1" in first
    assert "regressed:" not in final
    assert done.returncode == 2


def test_bisect(shared_drift: Drift) -> None:
    case = "suites/area/test_drift.py::test_double[cpu-1-3]"
    done = shared_drift.run("bisect", case, "--good", "1", "--bad", "4")
    assert done.returncode == 0, done.stderr
    assert "broke in 3: 2 is the last good one" in done.stdout
    assert "the two differ in drift" in done.stdout
    assert re.search(r"^  3 +bad +assert", done.stdout, re.MULTILINE)
    again = shared_drift.run("bisect", case, "--good", "1", "--bad", "4")
    assert again.stdout == done.stdout
    assert "2 cpu: kept" in again.stderr
    assert "3 cpu: running" in again.stderr  # a failure is measured each time
    data = json.loads(
        shared_drift.run("bisect", case, "--good", "1", "--bad", "4", "--json").stdout
    )
    assert [data["change"], data["good"], data["bad"]] == ["broke", "2", "3"]
    assert data["components"] == ["drift"]
    states = {stack["name"]: (stack["answer"], stack["failure"][:6]) for stack in data["stacks"]}
    assert states == dict.fromkeys("12", ("good", "")) | dict.fromkeys("34", ("bad", "assert"))


@pytest.mark.long
def test_bisect_of_a_test_that_names_no_lane(shared_drift: Drift, tmp_path: Path) -> None:
    """As a user's own do not: it runs on the lane that is asked for."""
    suite = shared_drift.path / "suites" / "area" / "test_plain.py"
    suite.write_text("import drift\ndef test_plain(): assert drift.double(3) == 6\n")
    command = ("bisect", "suites/area/test_plain.py::test_plain", "--good", "1", "--bad", "4")
    done = shared_drift.run(*command, "--lane", "cpu", "--out", str(tmp_path))
    without = shared_drift.run(*command)
    suite.unlink()
    assert "broke in 3: 2 is the last good one" in done.stdout, done.stderr
    assert "expected one --lane and one --topology" in without.stderr


def test_bisect_backwards_says_what_fixed_it(shared_drift: Drift) -> None:
    case = "suites/area/test_drift.py::test_half[cpu-1]"
    done = shared_drift.run("bisect", case, "--good", "6", "--bad", "5")
    assert "fixed in 6: 5 is the last bad one" in done.stdout


def test_bisect_of_what_changes_twice(shared_drift: Drift) -> None:
    case = "suites/area/test_drift.py::test_double[cpu-1-1]"
    assert case  # test_double[1] is right everywhere: n * n is 2 * n for 2 only
    case = case.replace("-1-1]", "-1-3]")
    order = ("--stacks", "1,3,5,4")
    done = shared_drift.run("bisect", case, "--good", "1", "--bad", "4", *order, "--every")
    assert "not monotonic: the answer changes 3 times" in done.stdout


def test_bisect_wants_ends_that_are_what_they_say(shared_drift: Drift) -> None:
    case = "suites/area/test_drift.py::test_double[cpu-1-3]"
    done = shared_drift.run("bisect", case, "--good", "3", "--bad", "4")
    assert done.returncode == 2
    assert "3 is bad: expected it to be good" in done.stderr


@pytest.mark.long
def test_bisect_over_a_folder_of_wheels(shared_drift: Drift) -> None:
    case = "suites/area/test_drift.py::test_half[cpu-1]"
    wheels = ("--wheels", "wheels", "--base", "1", "--component", "drift")
    done = shared_drift.run("bisect", case, "--good", "1", "--bad", "5", *wheels)
    assert done.returncode == 0, done.stderr
    assert "broke in 5: 4 is the last good one" in done.stdout
