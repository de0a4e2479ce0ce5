"""Verdicts on sixty nights with planted events: every one is found, and nothing else."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path

import pytest
from support import nights
from support.commands import xla_harness
from support.paths import ROOT

from harness.diagnosis.cause import Cause
from harness.history.store import History
from harness.model.outcome import BROKEN, DECLARABLE, OUTCOMES_SQL, WORKS, Kind
from harness.render import nightly_github, nightly_text
from harness.verdicts.costs import Cost
from harness.verdicts.finding import Finding
from harness.verdicts.nightly import Verdicts, judge
from harness.verdicts.rules import SQL, statement
from harness.verdicts.words import CHANGES_SQL, NIGHTLY, Verdict

Said = tuple[int, str, str, str]


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    folder = tmp_path_factory.mktemp("nights")
    recorded_history = History(folder / "history")
    recorded_history.record(nights.write(folder))
    return recorded_history


@pytest.fixture(scope="module")
def runs(history: History) -> list[str]:
    return [Path(name).stem for name in history.files.listed().names]


@pytest.fixture(scope="module")
def judged(history: History, runs: list[str]) -> Verdicts:
    return history.ask(lambda connection: judge(connection, runs))


def said(verdict: Finding) -> Said:
    night = (datetime.fromisoformat(verdict.run[:8]).date() - nights.FIRST.date()).days
    function = re.sub(r".*::test_(\w+)\[.*", r"\1", verdict.case)
    return night, verdict.stack, str(verdict.verdict), function


def run_of(runs: list[str], night: int, stack: str = "2.9.0") -> str:
    return sorted(runs)[night * len(nights.STACKS) + nights.STACKS.index(stack)]


def test_what_was_planted_is_found_and_nothing_else(judged: Verdicts) -> None:
    verdicts = sorted(map(said, judged.findings))
    assert sorted(nights.due()) == verdicts


def test_every_kind_was_planted() -> None:
    assert {kind for _, _, kind, _ in nights.due()} == set(NIGHTLY)


@pytest.mark.parametrize("night", [0, 12, 20, 32, 35, nights.LOST_LANE, 59])
def test_one_night_alone_is_judged_the_same(
    history: History, runs: list[str], judged: Verdicts, night: int
) -> None:
    run = run_of(runs, night)
    alone = history.ask(lambda connection: judge(connection, [run]))
    assert alone.findings == tuple(v for v in judged.findings if v.run == run)
    assert alone.runs == (run,)


def test_days_bound_what_is_looked_at(history: History, runs: list[str]) -> None:
    """Of a case that broke on night 20 nobody knows after 5 days that it ever worked."""
    run = run_of(runs, 30)
    judged = history.ask(lambda connection: judge(connection, [run], days=5))
    (still,) = (v for v in judged.findings if "test_regresses[" in v.case)
    assert (still.verdict, still.since) == (Verdict.STILL_FAILING, run_of(runs, 25))


def test_since_when_and_against_what(runs: list[str], judged: Verdicts) -> None:
    by = {said(v): v for v in judged.findings}
    still = by[30, "2.9.0", "still failing", "regresses"]
    assert (still.since, still.before) == (run_of(runs, 20), run_of(runs, 29))
    regressed = by[20, "nightly", "regressed", "regresses"]
    assert regressed.before == run_of(runs, 19, "nightly")
    assert regressed.since == regressed.run
    # The skipped nights between are no answers.
    assert by[38, "2.9.0", "regressed", "skips"].before == run_of(runs, 27)
    slower = by[32, "2.9.0", "slower", "slows"]
    (rise,) = slower.costs
    assert (rise.what, rise.unit, slower.since) == ("duration", "s", run_of(runs, 30))
    assert 1.4 < rise.now / rise.was < 1.8
    assert by[43, "nightly", "slower", "compiles_more"].costs == (Cost("compilations", 3, 4, ""),)
    assert by[28, "2.9.0", "missing", "skips"].outcome == "skipped"
    assert by[35, "2.9.0", "missing", "goes_and_returns"].outcome == ""


def test_crashed_and_hung_are_said_beside_what_changed(judged: Verdicts) -> None:
    crashed = {said(v)[0] for v in judged.of(Verdict.CRASHED)}
    assert crashed == set(range(40, 60))
    assert {v.outcome for v in judged.of(Verdict.HUNG)} == {"hung"}


def test_failures_of_one_cause_are_counted_as_one(history: History, runs: list[str]) -> None:
    both = [run_of(runs, 25, stack) for stack in nights.STACKS]
    causes = history.ask(lambda connection: judge(connection, both)).causes
    largest = causes[0]
    assert (largest.cases, largest.stacks, largest.results) == (2, 2, 4)
    assert largest.cause == Cause("numbers", "AssertionError: sums differ: N at ADDRESS")
    assert largest.first == min(run_of(runs, 20, stack) for stack in nights.STACKS)
    names = {each.message.partition(":")[0] for each in causes}
    assert names == {"AssertionError", "ValueError", "NameError", "hung for 26 s"}


def test_case_that_a_rerun_changes_is_flaky(tmp_path: Path) -> None:
    """Of any pytest's report: it passed in the end, and is flaky for seven runs."""
    for night, inside in enumerate(("", '<flakyFailure message="x"/>', *[""] * 7)):
        body = f'<testcase name="a">{inside}</testcase><testcase name="b"/>'
        head = f'<testsuite timestamp="2026-11-1{night}T02:30:00">'
        (tmp_path / f"{night}.xml").write_text(f"{head}{body}</testsuite>")
    history = History(tmp_path / "history")
    history.record(sorted(tmp_path.glob("*.xml")))
    runs = [Path(name).stem for name in history.files.listed().names]
    verdicts = history.ask(lambda connection: judge(connection, runs)).findings
    assert [(str(v.verdict), v.key, v.run) for v in verdicts] == [
        ("flaky", "a", run) for run in runs[1:8]
    ]


@pytest.mark.parametrize("name", sorted(path.stem for path in SQL.glob("*.sql")))
def test_every_statement_begins_with_its_rule(name: str) -> None:
    assert statement(name).startswith("-- ")


def test_every_outcome_is_one_answer_or_none() -> None:
    assert {*WORKS, *BROKEN, Kind.SKIPPED} == set(Kind)
    assert not set(WORKS) & set(BROKEN)
    assert set(DECLARABLE) <= set(BROKEN)


@pytest.mark.parametrize("relation", [OUTCOMES_SQL, CHANGES_SQL])
def test_other_engines_get_the_same_relations(relation: str) -> None:
    assert relation in (ROOT / "docs" / "history.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("night", "code", "answer"),
    [
        (5, 0, "Nothing regressed, nothing is missing."),
        (20, 1, "Refused: 2 regressed."),
        (35, 1, "Refused: 1 missing."),
        (25, 0, "Nothing regressed, nothing is missing."),
        (22, 0, "Nothing regressed but for 1 expected, nothing is missing."),
    ],
)
def test_command(history: History, tmp_path: Path, night: int, code: int, answer: str) -> None:
    runs = [Path(name).stem for name in history.files.listed().names]
    summary = tmp_path / "summary.md"
    summary.write_text("from another step\n\n")
    line = ["verdict", run_of(runs, night)[:18], "--history", history.location]
    done = xla_harness(*line, "--markdown", str(summary), "--annotations")
    assert done.returncode == code, done.stderr
    assert answer in done.stdout
    plain = [each for each in done.stdout.splitlines() if not each.startswith("::")]
    assert max(map(len, plain)) <= 80
    assert summary.read_text().startswith(f"from another step\n\n**{answer}**")
    assert (done.stdout.count("::error ") > 0) == (code == 1)


def test_json_has_the_documented_keys(history: History, runs: list[str]) -> None:
    text = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    (row,) = (line for line in text.splitlines() if line.startswith("| `verdict` |"))
    run = run_of(runs, 32)
    done = xla_harness("verdict", run, "--history", history.location, "--json")
    findings = json.loads(done.stdout)
    assert {frozenset(each) for each in findings} == {frozenset(re.findall(r"`(\w+)`", row))}
    (slower,) = (each for each in findings if each["verdict"] == "slower")
    assert (slower["number"], slower["run"]) == ("duration", run)
    assert slower["now"] > slower["was"] > 0


@pytest.mark.parametrize(
    ("run", "expected"),
    [("2025", "found none"), ("2026", "found several"), ("x' OR 1=1 --", "found none")],
)
def test_run_that_is_none(history: History, run: str, expected: str) -> None:
    done = xla_harness("verdict", run, "--history", history.location)
    assert done.returncode == 2
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


def test_latest(history: History, runs: list[str]) -> None:
    done = xla_harness("verdict", "latest", "--history", history.location)
    assert f"  {max(runs)}: stack nightly" in done.stdout


def test_text_says_what_changed_with_it(history: History, runs: list[str]) -> None:
    run = run_of(runs, 20, "nightly")
    judged = history.ask(lambda connection: judge(connection, [run]))
    shown = "\n".join(nightly_text.lines(judged))
    assert "------ regressed: 2 ------" in shown
    assert "    2  failed at numbers\n" in shown
    assert " ".join(shown.split()).count("torch_xla 2.10.0.dev19 -> 2.10.0.dev20") == 1


def test_what_is_expected_is_marked_and_refuses_nothing(history: History, runs: list[str]) -> None:
    run = run_of(runs, 22)
    judged = history.ask(lambda connection: judge(connection, [run]))
    (regressed,) = judged.of(Verdict.REGRESSED)
    assert regressed.expected
    assert (judged.refusals, judged.exit_code) == ((), 0)
    shown = "\n".join(nightly_text.lines(judged))
    assert "--- regressed: 1 (1 expected) ---" in shown
    assert "1 regressed (1 expected), " in " ".join(shown.split())
    # What fails as declared every night is counted, not listed.
    assert "test_fixed_upstream" not in shown
    assert "still failing: 6 (2 expected)" in shown
    assert "| regressed (expected) | 1 | expected failure" in nightly_github.summary(judged)
    assert list(nightly_github.annotation_lines(judged)) == []
