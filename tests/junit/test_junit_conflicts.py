"""Several results of one id in a report are a conflict, and no test can hide its result."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest
from support.junit_text import case, properties
from support.paths import ROOT
from support.project import Project

from harness import cli
from harness.dashboard import rows, units
from harness.dashboard.pages.compare_page import LETTERS
from harness.history.run import read_run
from harness.history.store import History
from harness.junit.properties import RESERVED, of_a_test
from harness.junit.report import read
from harness.lanes import LANES
from harness.lanes.events import Events
from harness.model.outcome import Kind
from harness.model.versions import COMPONENTS
from harness.session.record import Record

DOCS = (ROOT / "docs" / "outcomes.md").read_text()
STATIC = ROOT / "harness" / "dashboard" / "static"
SCRIPT, STYLE = ((STATIC / name).read_text() for name in ("compare.js", "site.css"))
HEAD = '<testsuite timestamp="2026-11-{day:02}T02:30:00+00:00">'
OURS = '<properties><property name="xla_harness_report" value="3"/></properties>'
FAILED = '<failure message="E: sums differ"/>'
TEARDOWN = '<error message="failed on teardown with &quot;OSError&quot;"/>'
EACH = ("--tx", "2*popen", "--dist", "each")


def foreign(inside: str = "", **values: str) -> str:
    return f'<testcase classname="a" name="b">{properties(values)}{inside}</testcase>'


def ours(outcome: str, inside: str = "", **changes: str) -> str:
    return case("b", outcome, inside, **changes)


def written(folder: Path, *cases: str, day: int = 21, head: str = "") -> Path:
    path = folder / f"report-{len(list(folder.iterdir()))}.xml"
    path.write_text(f"{HEAD.format(day=day)}{head}{''.join(cases)}</testsuite>")
    return path


SUITE = """\
@pytest.fixture
def breaks():
    yield
    raise OSError("after")
def test_differs(worker_id): assert worker_id == "gw0", "not here"
def test_agrees(): pass
def test_fails(): assert 0
def test_twice(breaks): assert 0, "first"
"""


@pytest.mark.parametrize("plain", [True, False], ids=["any pytest", "ours"])
def test_pass_and_failure_of_one_id_are_a_conflict(project: Project, *, plain: bool) -> None:
    """Each worker of a real pytest-xdist runs every test; whichever ends last must not decide."""
    lane = "" if plain else 'pytestmark = pytest.mark.lanes("cpu")\n'
    project.write("test_it.py", lane + SUITE)
    ran = project.run(*EACH, *(("-p", "no:xla-harness") if plain else ()))
    by_name = {case.id.split("::")[1].partition("[")[0]: case for case in read_run(ran.junit).cases}
    assert {name: str(case.outcome) for name, case in by_name.items()} == {
        "test_differs": "conflict",
        "test_agrees": "passed",
        "test_fails": "failed",
        "test_twice": "failed",
    }
    lines = by_name["test_differs"].message.splitlines()
    assert lines[0] == "conflicting results in one report: 1 failed, 1 passed"
    assert "not here" in lines[1]
    assert "outcomes" not in by_name["test_differs"].properties  # it is not flaky


@pytest.mark.parametrize(
    ("cases", "outcome", "rerun"),
    [
        ((foreign(), foreign(FAILED)), "conflict", 0),
        ((foreign(FAILED), foreign()), "conflict", 0),
        ((foreign(), foreign("<skipped/>")), "conflict", 0),
        ((foreign(), foreign()), "passed", 1),
        ((foreign(FAILED), foreign(FAILED)), "failed", 1),
        ((foreign(FAILED), foreign(TEARDOWN)), "failed", 0),
        ((foreign(), foreign(TEARDOWN)), "conflict", 0),
        ((foreign("<flakyFailure/>"),), "passed", 1),
        ((ours("passed"), ours("failed", FAILED)), "conflict", 0),
        ((ours("crashed", FAILED), ours("crashed", TEARDOWN)), "crashed", 0),
        ((ours("hung"), ours("crashed")), "conflict", 0),
    ],
)
def test_what_is_a_conflict(
    tmp_path: Path, cases: tuple[str, ...], outcome: str, rerun: int
) -> None:
    head = OURS if "outcome" in cases[0] else ""
    (case,) = read_run(written(tmp_path, *cases, head=head)).cases
    assert (case.outcome, case.rerun) == (outcome, rerun)


def test_message_says_how_often(tmp_path: Path) -> None:
    (case,) = read_run(written(tmp_path, foreign(), foreign(FAILED), foreign())).cases
    assert case.message.splitlines() == [
        "conflicting results in one report: 1 failed, 2 passed",
        "E: sums differ",
    ]
    assert case.signature == "conflicting results in one report: N failed, N passed"


def verdict(capsys: pytest.CaptureFixture[str], history: Path) -> tuple[int, str]:
    code = cli.main(["verdict", "latest", "--history", str(history)])
    return code, " ".join(capsys.readouterr().out.split())


def test_conflict_regresses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history = tmp_path / "history"
    first, then = (
        written(tmp_path, foreign()),
        written(tmp_path, foreign(FAILED), foreign(), day=22),
    )
    History(history).record([first, then])
    code, output = verdict(capsys, history)
    assert code == 1
    assert "Refused: 1 regressed." in output
    assert "1 conflict." in output
    assert "conflicting results in one report: 1 failed, 1 passed" in output
    site = tmp_path / "site"
    assert cli.main(["dashboard", "--history", str(history), "--out", str(site)]) == 0
    assert '<td class="o-conflict">conflict</td>' in (site / "cases.html").read_text()


def test_conflict_is_refused_by_qualify(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = written(tmp_path, ours("passed"), head=OURS)
    candidate = written(tmp_path, ours("passed"), ours("failed", FAILED), head=OURS)
    target = tmp_path / "answer.json"
    command = ["qualify", str(base), str(candidate), "--json", str(target)]
    assert cli.main([*command, "--out", str(tmp_path / "out")]) == 1
    (entry,) = json.loads(target.read_text())["cases"]
    assert entry["verdict"] == "regressed"
    assert "conflicting results in one report" in capsys.readouterr().out


def test_conflict_of_one_worker_is_that_of_the_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, cases in (("0-0", (ours("passed"), ours("failed"))), ("1-0", (ours("passed"),))):
        (tmp_path / name).mkdir()
        written(tmp_path / name, *cases, head=OURS).rename(tmp_path / name / "report.xml")
    out = tmp_path / "merged.xml"
    folders = [str(tmp_path / name) for name in ("0-0", "1-0")]
    assert cli.main(["ci", "jobset", "merge", *folders, "--out", str(out)]) == 1
    assert "1 cases of 2 workers: 1 conflict" in capsys.readouterr().out
    (result,) = read(out).results.values()
    assert result.outcome == Kind.CONFLICT
    assert result.properties["workers"] == "0-0 conflict, 1-0 passed"


# Names that the harness interprets.


def test_every_name_that_the_harness_writes_is_reserved() -> None:
    record = {field.name for field in fields(Record)} - {"facts"}
    facts = {name for lane in LANES.values() for name in lane.facts(Events())}
    merged = {"workers", "skipped_on", "outcomes", "lost"}
    stack = {"python", "modified", *COMPONENTS}
    of_checks = {"conformity", "conformity_level"}
    reuse = {"reused", "reused_wrongly"}
    assert record | facts | merged | stack | of_checks | reuse == RESERVED
    assert of_a_test("outcome") == "test:outcome"
    assert of_a_test("rows") == "rows"


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_reserved_names_are_documented(name: str) -> None:
    assert f"`{name}`" in DOCS


@pytest.mark.parametrize("kind", Kind)
def test_outcomes_are_documented_and_drawn(kind: Kind) -> None:
    assert f"| {kind} |" in DOCS
    assert units.kind(kind) != "other"
    assert kind in LETTERS
    assert f'{LETTERS[kind]}: "{kind}"' in SCRIPT
    assert (kind in rows.BAD) == kind.is_bad
    assert units.urgency(kind) < len(Kind)
    assert re.search(rf"\.s-{units.kind(kind)}[ ,]", STYLE)


PLANTED = {"outcomes": "passed, failed", "lost": "cell", "outcome": "passed", "failure": "none",
           "expectation": "pytorch/xla#1", "id": "other", "skipped_on": "x"}  # fmt: skip


def test_test_cannot_make_its_regression_flaky(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    """A real report of a test that records properties with the harness's own names."""
    history = project.path / "history"
    for day, body in ((1, "pass"), (2, "assert 0")):
        calls = "".join(f"    record_property({k!r}, {v!r})\n" for k, v in PLANTED.items())
        project.write("test_it.py", f"def test_it(record_property):\n{calls}    {body}\n")
        ran = project.run("-p", "no:xla-harness")
        time = ["--time", f"2026-11-{day:02}"]
        assert cli.main(["record", str(ran.junit), "--history", str(history), *time]) == 0
    code, text = verdict(capsys, history)
    assert (code, "Refused: 1 regressed." in text) == (1, True)
    (case,) = read_run(ran.junit).cases
    assert (case.id, case.outcome, case.expected) == ("test_it.py::test_it", "failed", False)
    assert case.properties == {f"test:{name}": value for name, value in PLANTED.items()}


def test_names_that_readers_use_are_never_taken_from_a_report_of_ours(tmp_path: Path) -> None:
    case = ours("failed", FAILED, outcomes="passed, failed", lost="cell")
    (case_read,) = read_run(written(tmp_path, case, head=OURS)).cases
    theirs = {name: v for name, v in case_read.properties.items() if name.startswith("test:")}
    assert theirs == {"test:outcomes": "passed, failed", "test:lost": "cell"}
    assert not {"outcomes", "lost"} & case_read.properties.keys()


def test_any_test_may_say_where_it_belongs(tmp_path: Path) -> None:
    own = {"area": "sums", "lane": "cpu", "topology": "2x4", "upstream": "pytorch/xla#1 a/b#2",
            "layer": "numbers", "compilations": "3", "rows": "2", "python": "4"}  # fmt: skip
    (case,) = read_run(written(tmp_path, foreign(**own))).cases
    assert (case.area, case.lane, case.topology, case.layer) == ("sums", "cpu", "2x4", "numbers")
    assert case.upstream == ("pytorch/xla#1", "a/b#2")
    assert case.properties == {"compilations": "3", "rows": "2", "test:python": "4"}


@pytest.mark.parametrize(("name", "value"), [("outcome", "passed"), ("workers", "0-0 passed")])
def test_reserved_name_twice_costs_that_case(tmp_path: Path, name: str, value: str) -> None:
    """Whichever of the two stands last must not decide."""
    twice = ours("failed", workers="0-0 failed").replace(
        "</properties>", f'<property name="{name}" value="{value}"/></properties>'
    )
    other = ours("passed", id="a.py::c")
    run = read_run(written(tmp_path, twice, other, head=OURS))
    assert {case.id: str(case.outcome) for case in run.cases} == {
        "a.py::b": "skipped", "a.py::c": "passed",
    }  # fmt: skip
    why = f"property {name!r}: expected it once, found it several times"
    assert run.cases[0].message == f"can't be read: {why}"
    assert run.faults == (f"{tmp_path / 'report-0.xml'}: test case 'b': {why}",)


def test_own_name_twice_is_the_tests_business(tmp_path: Path) -> None:
    inside = '<properties><property name="n" value="1"/><property name="n" value="2"/></properties>'
    run = read_run(written(tmp_path, f'<testcase name="b">{inside}</testcase>'))
    assert (run.cases[0].outcome, run.cases[0].properties, run.faults) == ("passed", {"n": "2"}, ())


def test_report_that_contradicts_itself_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head = properties({"stack": "2.9.0"}) + properties({"stack": "2.5.1"})
    path = written(tmp_path, foreign(), head=head)
    assert cli.main(["record", str(path), "--history", str(tmp_path / "history")]) == 2
    assert f"{path}: property 'stack': expected one value" in capsys.readouterr().err
