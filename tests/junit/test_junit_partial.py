"""Reports that can't be read, in part or at all: what is sound counts, and the rest is named."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support import junit_text
from support.junit_text import properties

from harness import cli
from harness.errors import PARTIAL, BadInputError
from harness.history.run import RunMetadata, read_run
from harness.history.store import History
from harness.junit.report import read
from harness.matrix.cell import Cell
from harness.stacks.stack import Stack

Captured = pytest.CaptureFixture[str]
SUITE = '<testsuite timestamp="2026-11-{day:02}T02:30:00+00:00" time="-1">'
HEAD = properties({"xla_harness_report": "3", "stack": "2.9.0", "torch_xla": "2.9.0"})
BOMB = '<!DOCTYPE t [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>'
# Each way in which one test case can't be read, with what is said of it.
UNREADABLE = {
    'time="-1"': "attribute 'time': expected seconds, found '-1'",
    'time="nan"': "attribute 'time': expected seconds, found 'nan'",
    'time="soon"': "attribute 'time': expected seconds, found 'soon'",
}


def case(name: str, attributes: str = 'time="1.5"', outcome: str = "passed") -> str:
    return junit_text.case(name, outcome).replace('time="1"', attributes)


def report(path: Path, *cases: str, day: int = 21, before: str = "", end: bool = True) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    close = "</testsuite>" if end else '<testcase name="z"><prop'
    path.write_text(f"{before}{SUITE.format(day=day)}{HEAD}{''.join(cases)}{close}")
    return path


def bomb(path: Path) -> Path:
    return report(path, case("a", 'classname="&b;"'), before=BOMB)


def ten_gigabytes(path: Path) -> Path:
    """A file of that size that takes no room."""
    report(path, case("a"), end=False)
    os.truncate(path, 10 << 30)
    return path


COMMANDS: dict[str, list[str]] = {
    "record": ["record", "FILE", "--history", "new"],
    "qualify": ["qualify", "good.xml", "FILE", "--out", "new"],
    "since": ["since", "1", "--reports", "FOLDER"],
    "durations": ["ci", "durations", "FILE", "--out", "new"],
    "expectations": ["known", "update", "FILE", "--expectations", "expectations"],
    "jobset merge": ["ci", "jobset", "merge", "FOLDER", "--out", "new"],
}


HOSTILE: dict[str, tuple[Callable[[Path], Path], str]] = {
    "bomb": (bomb, "found a document type"),
    "size": (ten_gigabytes, "found more than 4,294,967,296 bytes"),
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("expectations").mkdir()
    return report(Path("good.xml"), case("a"))


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_report_is_refused_by_every_command(capsys: Captured, name: str, kind: str) -> None:
    hostile, message = HOSTILE[kind]
    path = hostile(Path("0-0", "report.xml"))
    known = {"FILE": str(path), "FOLDER": str(path.parent)}
    assert cli.main([known.get(word, word) for word in COMMANDS[name]]) == 2
    assert f"{path}: expected a JUnit report: line 1: {message}" in capsys.readouterr().err
    assert not Path("new").exists()


@pytest.mark.parametrize("attribute", UNREADABLE)
def test_one_bad_case_costs_itself(tmp_path: Path, capsys: Captured, attribute: str) -> None:
    history = tmp_path / "history"
    first = report(tmp_path / "1.xml", case("a"), case("b"), day=20)
    assert cli.main(["record", str(first), "--history", str(history)]) == 0
    path = report(tmp_path / "2.xml", case("a"), case("b", attribute), case("c", outcome="failed"))
    assert cli.main(["record", str(path), "--history", str(history)]) == PARTIAL
    assert f"left out: {path}: test case 'b': {UNREADABLE[attribute]}" in capsys.readouterr().err
    sql = 'SELECT "case", outcome, message FROM cases WHERE day(date) = 21 ORDER BY ALL'
    rows = History(history).ask(lambda connection: connection.execute(sql).fetchall())
    assert rows == [
        ("a.py::a", "passed", ""),
        ("a.py::b", "skipped", f"can't be read: {UNREADABLE[attribute]}"),
        ("a.py::c", "failed", ""),
    ]
    assert cli.main(["verdict", "latest", "--history", str(history)]) == 1  # never forgotten
    output = " ".join(capsys.readouterr().out.split())
    assert "Refused: 1 missing." in output
    assert f"can't be read: {UNREADABLE[attribute]}" in output


@pytest.mark.parametrize("element", ["<failure/>", '<error message="failed on teardown"/>'])
def test_pass_beside_a_failure_is_no_pass(tmp_path: Path, capsys: Captured, element: str) -> None:
    """The two halves of one case's record disagree."""
    both = case("a").replace("</testcase>", f"{element}</testcase>")
    path, history = report(tmp_path / "1.xml", both, case("b")), str(tmp_path / "history")
    assert cli.main(["record", str(path), "--history", history]) == PARTIAL
    assert "property 'outcome': found 'passed' beside a failure" in capsys.readouterr().err
    assert [str(c.outcome) for c in read_run(path).cases] == ["skipped", "passed"]


def test_case_of_which_nobody_knows_which_it_is(tmp_path: Path, capsys: Captured) -> None:
    path = report(tmp_path / "1.xml", case("a"), '<testcase classname="" name=""/>')
    history = str(tmp_path / "history")
    assert cli.main(["record", str(path), "--history", history]) == PARTIAL
    assert f"left out: {path}: test case '': expected a name" in capsys.readouterr().err
    assert [c.id for c in read_run(path).cases] == ["a.py::a"]


def test_cut_report_costs_what_is_behind_the_cut(tmp_path: Path, capsys: Captured) -> None:
    path = report(tmp_path / "1.xml", case("a"), case("b"), end=False)
    good = report(tmp_path / "2.xml", case("a"), day=22)
    history = tmp_path / "history"
    assert cli.main(["record", str(path), str(good), "--history", str(history)]) == PARTIAL
    assert f"left out: {path}: cut off or damaged: unclosed token" in capsys.readouterr().err
    sql = "SELECT count(*), count(DISTINCT run) FROM cases"
    assert History(history).ask(lambda c: c.execute(sql).fetchall()) == [(3, 2)]


def test_one_bad_report_of_lanes_together(tmp_path: Path) -> None:
    paths = [report(tmp_path / "1.xml", case("a")), tmp_path / "gone.xml"]
    command = ["record", "--together", *map(str, paths), "--history", str(tmp_path / "history")]
    assert cli.main(command) == PARTIAL


def qualify(tmp_path: Path, base: Path, candidate: Path) -> tuple[int, dict[str, str]]:
    target = tmp_path / "answer.json"
    command = ["qualify", str(base), str(candidate), "--json", str(target)]
    code = cli.main([*command, "--out", str(tmp_path / "out")])
    return code, {f["case"]: f["failure"] for f in json.loads(target.read_text())["cases"]}


def test_qualify_names_what_it_did_not_read(tmp_path: Path, capsys: Captured) -> None:
    """Nothing regressed as far as it can be read, which is not the same as nothing regressed."""
    base = report(tmp_path / "base.xml", case("a"))
    candidate = tmp_path / "candidate"
    report(candidate / "cpu.xml", case("a"))
    assert qualify(tmp_path, base, candidate)[0] == 0
    bad = bomb(candidate / "tpu.xml")
    bad.write_text(bad.read_text() + " " * 100)
    assert qualify(tmp_path, base, candidate)[0] == PARTIAL
    assert f"left out: {bad}: expected a JUnit report" in capsys.readouterr().err


def test_qualify_refuses_a_case_that_cannot_be_read(tmp_path: Path) -> None:
    base = report(tmp_path / "base.xml", case("a"), case("b"))
    candidate = report(tmp_path / "candidate.xml", case("a"), case("b", 'time="-1"'))
    code, failures = qualify(tmp_path, base, candidate)
    assert code == 1
    (why,) = (failure for name, failure in failures.items() if name.startswith("a.py::b"))
    assert why == "skipped: can't be read: attribute 'time': expected seconds, found '-1'"


def test_durations_leave_out_what_has_none(tmp_path: Path) -> None:
    path, out = report(tmp_path / "1.xml", case("a"), case("b", 'time="-1"')), tmp_path / "out.json"
    assert cli.main(["ci", "durations", str(path), "--out", str(out)]) == PARTIAL
    assert json.loads(out.read_text()) == {"cpu": {"a.py::a": 1.5}}


def test_expectations_are_not_rewritten_from_a_part(tmp_path: Path, capsys: Captured) -> None:
    """What is behind the cut would count as gone."""
    path = report(tmp_path / "1.xml", case("a"), end=False)
    folder = tmp_path / "expectations"
    folder.mkdir()
    command = ["known", "update", str(path), "--expectations", str(folder)]
    assert cli.main(command) == 2
    assert f"{path}: cut off or damaged" in capsys.readouterr().err


def test_count_that_is_none(tmp_path: Path) -> None:
    path = report(tmp_path / "1.xml", case("a"))
    head = '<properties><property name="left out: x" value="abc"/></properties>'
    path.write_text(path.read_text().replace(HEAD, HEAD + head))
    content = read(path)
    assert (len(content.results), dict(content.left_out)) == (1, {})
    assert content.faults == (f"{path}: property 'left out: x': expected a number, found 'abc'",)


def test_dashboard_is_published_without_a_damaged_file(tmp_path: Path, capsys: Captured) -> None:
    history = History(tmp_path / "history")
    history.record([report(tmp_path / "1.xml", case("a"))])
    (second,) = history.record([report(tmp_path / "2.xml", case("a"), day=22)])
    (tmp_path / "history" / second.name).write_bytes(b"PAR1")
    command = ["dashboard", "--history", history.location, "--out", str(tmp_path / "site")]
    assert cli.main(command) == PARTIAL
    assert f"set aside: {second.name}" in capsys.readouterr().err
    assert (tmp_path / "site" / "index.html").exists()


def test_cell_whose_report_cannot_be_read_has_died(tmp_path: Path) -> None:
    """So it is run again, and the other cells of the matrix are shown."""
    cell = Cell(Stack("2.9.0", "3.11", {}), "cpu", tmp_path)
    bomb(tmp_path / ".cpu.xml")
    with pytest.raises(BadInputError, match="found a document type"):
        cell.finish({}, 1)
    assert not cell.report.exists()


# Several workers' reports as one.


def merged(tmp_path: Path, capsys: Captured, *workers: str) -> tuple[int, dict[str, str], str]:
    """The exit code, each case's outcome, and what was printed."""
    folders = [tmp_path / f"{number}-0" for number in range(len(workers))]
    for folder, text in zip(folders, workers, strict=True):
        folder.mkdir()
        (folder / "report.xml").write_text(text)
    out = tmp_path / "merged.xml"
    code = cli.main(["ci", "jobset", "merge", *map(str, folders), "--out", str(out)])
    captured = capsys.readouterr()
    content = read(out)
    assert not content.faults
    again = {c.id: c.outcome for c in read_run(out, RunMetadata()).cases}
    outcomes = {result.id: str(result.outcome) for result in content.results.values()}
    assert again == outcomes
    return (
        code,
        {id_.partition("::")[2]: outcome for id_, outcome in outcomes.items()},
        captured.out,
    )


def text(*cases: str, end: bool = True) -> str:
    return f"{SUITE.format(day=1)}{HEAD}{''.join(cases)}{'</testsuite>' if end else '<testcase na'}"


def test_worker_with_a_cut_report_has_none(tmp_path: Path, capsys: Captured) -> None:
    """Its cases crashed there; before, it stopped the merge of all others."""
    both = (case("a"), case("b", outcome="failed"))
    code, outcomes, output = merged(tmp_path, capsys, text(*both), text(*both, end=False))
    assert (code, outcomes) == (1, {"a": "crashed", "b": "crashed"})
    path = tmp_path / "1-0" / "report.xml"
    assert f"worker 1-0 has no report: {path}: cut off or damaged: unclosed token" in output


def test_hostile_worker_has_no_report(tmp_path: Path, capsys: Captured) -> None:
    code, outcomes, output = merged(tmp_path, capsys, text(case("a")), BOMB + text(case("a")))
    assert (code, outcomes) == (1, {"a": "crashed"})
    assert "worker 1-0 has no report:" in output


@pytest.mark.parametrize("where", ["one", "all"])
def test_bad_case_of_a_worker_crashed_there(tmp_path: Path, capsys: Captured, where: str) -> None:
    bad = text(case("a"), case("b", 'time="-1"'))
    good = text(case("a"), case("b"))
    workers = (good, bad) if where == "one" else (bad, bad)
    code, outcomes, output = merged(tmp_path, capsys, *workers)
    assert (code, outcomes) == (1, {"a": "passed", "b": "crashed"})
    path = tmp_path / "1-0" / "report.xml"
    assert f"worker 1-0: {path}: test case 'b': attribute 'time'" in output


def test_merge_names_a_case_of_which_nobody_knows_which_it_is(
    tmp_path: Path, capsys: Captured
) -> None:
    workers = (text(case("a")), text(case("a"), '<testcase name=""/>'))
    code, outcomes, output = merged(tmp_path, capsys, *workers)
    assert (code, outcomes) == (PARTIAL, {"a": "passed"})
    assert "test case '': expected a name, found none" in output


def test_plain_test_that_a_worker_lacks_has_crashed_there(tmp_path: Path, capsys: Captured) -> None:
    """Without its id the merged report could not be read."""
    plain = '<testcase classname="tests.test_x" name="test_y" time="1"/>'
    workers = (text(case("a"), plain), text(case("a")))
    code, outcomes, _ = merged(tmp_path, capsys, *workers)
    assert (code, outcomes) == (1, {"a": "passed", "test_y": "crashed"})


def test_two_folders_of_one_worker(tmp_path: Path, capsys: Captured) -> None:
    folders = [report(tmp_path / name / "0-0" / "report.xml", case("a")).parent for name in "ab"]
    command = ["ci", "jobset", "merge", *map(str, folders), "--out", str(tmp_path / "merged.xml")]
    assert cli.main(command) == 2
    assert "found two of one name" in capsys.readouterr().err


def test_workers_output_is_kept_up_to_a_limit(tmp_path: Path, capsys: Captured) -> None:
    printed = f"<system-out>{'x' * (3 << 20)}</system-out></testcase>"
    worker = text(case("a").replace("</testcase>", printed))
    assert merged(tmp_path, capsys, worker, worker)[:2] == (0, {"a": "passed"})
    assert 2 << 20 < (tmp_path / "merged.xml").stat().st_size < 3 << 20
