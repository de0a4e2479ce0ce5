"""What else a case's facts say: every fact is compared, or it is said why not."""

from __future__ import annotations

import json
import re

import pytest
from support.paths import ROOT
from support.two_stacks import report, result

from harness.junit import properties
from harness.junit.report import Report
from harness.lanes import LANES
from harness.lanes.events import Events
from harness.model.outcome import Kind
from harness.render import comparison_github, comparison_json, comparison_text
from harness.verdicts.allow import Allowed
from harness.verdicts.compare import compare, decide
from harness.verdicts.comparison import Comparison
from harness.verdicts.costs import COSTS
from harness.verdicts.differences import EXACT, NOT_COMPARED
from harness.verdicts.words import Verdict

INSIDE = "all-reduce of 4096 B over {0-3}"


def test_every_fact_is_compared_or_has_a_reason() -> None:
    decided = [*COSTS, *EXACT, *NOT_COMPARED]
    assert len(decided) == len(set(decided))
    assert set(decided) == properties.RESERVED - properties._READ - set(properties.VERSIONS)


@pytest.mark.parametrize("lane", ["cpu", "virtual-tpu", "tpu-aot", "tpu", "gpu-aot", "gpu"])
def test_every_fact_of_a_lane_is_decided(lane: str) -> None:
    facts = LANES[lane].facts(Events())
    assert facts
    assert facts.keys() <= COSTS | EXACT.keys() | NOT_COMPARED.keys()


def compiled(*inside: str, across: tuple[str, ...] = ()) -> dict[str, str]:
    programs = [{"inside": list(inside), "across": list(across), "changed": []}]
    return {"aot_programs": "1", "aot_programs_compiled": json.dumps(programs)}


def side(stack: str, properties: dict[str, str]) -> Report:
    return report(result("x", outcome=Kind.PASSED, properties=properties), stack=stack)


def compared(was: dict[str, str], now: dict[str, str]) -> Comparison:
    return compare([side("a", was)], [side("b", now)])


def test_a_collective_that_leaves_its_loop() -> None:
    """https://github.com/openxla/xla/issues/49143: the sum of a loop's steps became one step's."""
    comparison = compared(compiled(f"{INSIDE}, ? times a step"), compiled(INSIDE))
    (case,) = comparison.findings
    assert case.verdict == Verdict.CHANGED
    text = f"collectives inside a slice: {INSIDE}, ? times a step -> {INSIDE}"
    assert case.note == f"other facts: {text}"
    assert text in " ".join("\n".join(comparison_text.lines(comparison)).split())
    assert "? times a step" in comparison_github.summary(comparison)
    (row,) = comparison_json.as_data(comparison, Allowed({}, ()))["cases"]
    assert row["changes"] == [
        {
            "what": "collectives inside a slice",
            "was": f"{INSIDE}, ? times a step",
            "now": INSIDE,
        }
    ]
    decision = decide(comparison)
    assert decision.exit_code == 0
    assert "; 1 with other facts" in decision.sentence


@pytest.mark.parametrize(
    ("was", "now", "change"),
    [
        (compiled(INSIDE, "b"), compiled("b", INSIDE), ""),
        (compiled(f"2 x {INSIDE}"), compiled(INSIDE, INSIDE), ""),
        (compiled(f"2 x {INSIDE}"), compiled(INSIDE), f"{INSIDE} -> none"),
        (compiled(across=("c",)), compiled(), "exchanges between slices: c -> none"),
        (compiled(), {**compiled(), "aot_kernels": "1"}, "none -> 1"),
        ({"executions": "1"}, {"executions": "1", "pallas_kernels": "k 2"}, "none -> k 2"),
        ({"executions": "1"}, {"executions": "1", "pallas_faults": "race k 1"}, "-> race k 1"),
        (
            {"executions": "1", "discoveries": "1"},
            {"executions": "1", "discoveries": "2"},
            "discoveries: 1 -> 2",
        ),
        (compiled(INSIDE), {}, f"{INSIDE} -> none"),  # it compiles nothing any more
        ({}, {"pallas_kernels": "k 2"}, ""),  # the base's report is of another tool
    ],
)
def test_a_change_of_any_fact(was: dict[str, str], now: dict[str, str], change: str) -> None:
    (case,) = compared(was, now).findings
    assert case.verdict == (Verdict.CHANGED if change else Verdict.UNCHANGED)
    assert change in case.note


def test_a_rerun_that_agrees_settles_it() -> None:
    was, now = side("a", compiled(INSIDE)), side("b", compiled())
    (case,) = compare([was], [now], [], [side("b", compiled(INSIDE))]).findings
    assert case.verdict == Verdict.UNCHANGED


@pytest.mark.parametrize(
    ("fact", "was", "now", "text"),
    [
        ("executions", "10", "15", "executions: 10 executions -> 15 (+50%)"),
        ("executions", "10", "14", ""),
        ("compilations", "100", "108", ""),
        ("compilations", "8", "4", ""),
        ("clients", "1", "2", "clients: 1 clients -> 2 (+100%)"),
    ],
)
def test_what_is_asked_more_often(fact: str, was: str, now: str, text: str) -> None:
    (case,) = compared({fact: was}, {fact: now}).findings
    assert [str(cost) for cost in case.costs] == ([text] if text else [])
    assert case.verdict == (Verdict.SLOWER if text else Verdict.UNCHANGED)


def test_the_answer_names_its_lanes() -> None:
    sentence = decide(compared({}, {})).sentence
    assert sentence == "Qualified on cpu: nothing regressed, nothing is missing."


def test_every_fact_is_documented() -> None:
    page = (ROOT / "docs" / "stacks.md").read_text().partition("### Facts")[2].partition("\n## ")[0]
    assert {f"`{name}`" for name in (*COSTS, *EXACT, *NOT_COMPARED)} <= set(
        re.findall("`\\w+`", page)
    )
