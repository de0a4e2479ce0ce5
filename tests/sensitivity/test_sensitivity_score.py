"""What is counted, and which cases are enough."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import cli
from harness.history.store import History
from harness.sensitivity.fault import Fault
from harness.sensitivity.score import FaultResult, FaultVerdict, Score, Share, share
from harness.sensitivity.score_report import write_report
from harness.sensitivity.score_text import lines

SEEN, UNSEEN = FaultVerdict.SEEN, FaultVerdict.UNSEEN


def answer(case: str, opcode: str, verdict: FaultVerdict = SEEN, area: str = "area") -> FaultResult:
    return FaultResult(Fault(0, case, "digest", "narrowed", 0, opcode), area, verdict)


@pytest.mark.parametrize(
    "verdict", [v for v in FaultVerdict if v not in (SEEN, UNSEEN, FaultVerdict.NOT_EXECUTED)]
)
def test_only_what_can_be_seen_counts(verdict: FaultVerdict) -> None:
    score = Score([answer("a", "dot"), answer("a", "dot", UNSEEN), answer("a", "dot", verdict)])
    counts = score.by_area()["area"]
    assert counts[verdict] == 1
    assert share(counts) == Share(1, 1)
    assert share(counts).percent == 50
    assert share(score.by_operator()["narrowed"]).percent == 50


def test_what_is_not_executed_counts_as_not_seen() -> None:
    score = Score([answer("a", "dot"), answer("", "dot", FaultVerdict.NOT_EXECUTED)], unit="module")
    assert share(score.in_all()["all modules"]) == Share(1, 1)
    assert not score.by_case()  # which of them should have seen it?
    assert not score.adds_nothing()


def test_the_cases_that_miss_most_come_first() -> None:
    answers = [
        answer("all", "dot"),
        answer("one", "dot"),
        answer("one", "reduce", UNSEEN),
        answer("two", "dot", UNSEEN),
        answer("two", "reduce", UNSEEN),
        answer("uncounted", "dot", FaultVerdict.EQUIVALENT),
    ]
    score = Score(answers)
    assert list(score.by_case()) == ["two", "one", "all"]
    text = "\n".join(lines(score))
    assert "  50 %  1 of 2 not seen\n        one\n" in text
    assert text.index("        two\n") < text.index("        one\n")
    assert "        all\n" not in text


def test_where_nothing_counts_nobody_knows() -> None:
    assert share({FaultVerdict.REFUSED: 3}).percent is None


def test_the_cheapest_cases_that_see_all() -> None:
    answers = [
        answer("slow", "dot"),
        answer("slow", "reduce"),
        answer("slow", "all-reduce"),
        answer("fast", "dot"),
        answer("fast", "reduce"),
        answer("blind", "dot", UNSEEN),
    ]
    score = Score(answers, cost={"slow": 10, "fast": 1, "blind": 0.1})
    assert score.smallest() == ["fast", "slow"]
    assert score.smallest(0.6) == ["fast"]
    assert score.adds_nothing() == ["blind"]


def test_a_case_that_missed_one_of_a_kind_does_not_stand_for_it() -> None:
    answers = [answer("half", "dot"), answer("half", "dot", UNSEEN), answer("whole", "dot")]
    score = Score(answers, cost={"half": 1, "whole": 100})
    assert score.smallest() == ["whole"]


def test_the_given_cases_stay_and_what_they_miss_is_added() -> None:
    answers = [answer("given", "dot"), answer("cheap", "dot"), answer("more", "reduce")]
    score = Score(answers, cost={"given": 10, "cheap": 1, "more": 1})
    assert score.smallest(given=["given", "unasked"]) == ["given", "unasked", "more"]


def test_lines_of_two_functions_are_two_kinds() -> None:
    faults = [
        Fault(0, f"of {name}", f"m:{name}:1", "python-number", 0, "line 3") for name in ("f", "g")
    ]
    score = Score([FaultResult(fault, "area", SEEN) for fault in faults])
    assert score.smallest() == ["of f", "of g"]


def test_kinds_are_of_one_area() -> None:
    score = Score([answer("a", "dot"), answer("b", "dot", area="other")])
    assert score.smallest() == ["a", "b"]


def test_nothing_seen_needs_no_case() -> None:
    assert Score([answer("a", "dot", UNSEEN)]).smallest() == []


def test_a_report_has_the_numbers_of_each_area(tmp_path: Path) -> None:
    answers = [
        answer("a", "narrowed", FaultVerdict.SEEN, area="dtensor"),
        answer("b", "narrowed", FaultVerdict.UNSEEN, area="dtensor"),
        answer("c", "narrowed", FaultVerdict.SEEN, area="spmd_specs"),
        answer("d", "narrowed", FaultVerdict.EQUIVALENT, area="host_work"),
    ]
    write_report(tmp_path / "report.xml", Score(answers), "virtual-tpu", 60)
    recorded = ["record", str(tmp_path / "report.xml"), "--stack=2.9.0"]
    assert cli.main([*recorded, f"--history={tmp_path / 'history'}"]) == 0
    columns = '"case", lane, outcome, message, properties'
    sql = f"SELECT {columns} FROM cases ORDER BY area"
    rows = History(str(tmp_path / "history")).ask(lambda c: c.execute(sql).fetchall())
    (half, unknown, whole) = rows
    message = "50.0 % of the faults were seen"
    name = "sensitivity.virtual-tpu::dtensor"
    assert half[:4] == (name, "", "failed", message)
    numbers = {"faults_seen": "1", "faults_not_seen": "1", "faults_seen_percent": "50.0"}
    assert half[4].items() >= (numbers | {"faults_not_seen_narrowed": "1"}).items()
    assert whole[4]["faults_not_seen_narrowed"] == "0"
    assert "faults_not_seen_narrowed" not in unknown[4]
    assert unknown[1:3] == ("", "skipped")
    assert "faults_seen_percent" not in unknown[4]
    assert whole[1:3] == ("", "passed")
