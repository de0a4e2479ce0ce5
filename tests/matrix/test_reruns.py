"""Which cases are rerun, and what their reruns say of the others."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from support.two_stacks import report, result

from harness.junit.report import Report
from harness.junit.result import Result
from harness.matrix.qualify import Effort, results_of, steps
from harness.matrix.reruns import chosen, in_doubt, with_basis
from harness.matrix.runner import Runner
from harness.matrix.sides import Sides
from harness.model.outcome import Kind
from harness.render.comparison_text import rested
from harness.stacks.environments import Environments
from harness.stacks.stack import Stack
from harness.verdicts.compare import compare
from harness.verdicts.comparison import Comparison
from harness.verdicts.finding import Finding
from harness.verdicts.groups import basis, causes, representatives
from harness.verdicts.words import Verdict

STACK = Stack("1", "3.11", {})


def case(name: str, *, works: bool, **changes: object) -> Result:
    outcome = Kind.PASSED if works else Kind.FAILED
    return result(name, outcome=outcome, message="" if works else "no", **changes)


def all_of(names: Iterable[str], *, works: bool, **changes: object) -> Report:
    return report(*(case(name, works=works, **changes) for name in names))


def key(name: str) -> str:
    return f"a.py::{name}[cpu-4]"


def regressed(names: Iterable[str]) -> Comparison:
    return compare([all_of(names, works=True)], [all_of(names, works=False)])


def cases_of(*ids: str) -> list[Finding]:
    cases = [case("x", works=False, id=id_) for id_ in ids]
    good = [case("x", works=True, id=id_) for id_ in ids]
    return list(compare([report(*good)], [report(*cases)]).findings)


def test_representatives_come_from_everywhere() -> None:
    ids = [f"a.py::f[cpu-1-{n}]" for n in range(9)]
    ids += ["a.py::g[cpu-1-0]", "a.py::g[cpu-1-1]", "b.py::f[cpu-1-0]"]
    cases = cases_of(*ids)
    first = [f.case for f in representatives(cases, 5)]
    assert first == [
        "a.py::f[cpu-1-0]",
        "b.py::f[cpu-1-0]",
        "a.py::g[cpu-1-0]",
        "a.py::f[cpu-1-8]",
        "a.py::g[cpu-1-1]",
    ]
    assert [f.case for f in representatives(reversed(cases), 2)] == first[:2]
    assert sorted(f.case for f in representatives(cases, 100)) == sorted(ids)


def test_lanes_and_areas_are_causes_of_their_own() -> None:
    places = [("cpu", "a"), ("cpu", "b"), ("tpu", "a")]
    sides = [
        report(
            *(
                case(f"t{n}", works=works, lane=lane, area=area)
                for n, (lane, area) in enumerate([*places, places[0]])
            )
        )
        for works in (True, False)
    ]
    comparison = compare(sides[:1], sides[1:]).of(Verdict.REGRESSED)
    assert [len(group) for group in causes(comparison)] == [2, 1, 1]


def test_a_cause_in_doubt_is_rerun_whole() -> None:
    names = [f"t{n}" for n in range(6)]
    first = regressed(names)
    keys = chosen(first, 3)
    assert keys == [key("t0"), key("t1"), key("t2")]
    agree = compare_again(names, first=keys, works=())
    assert in_doubt(first, agree, keys) == []
    differ = compare_again(names, first=keys, works=("t1",))
    assert in_doubt(first, differ, keys) == [key("t3"), key("t4"), key("t5")]


def test_what_expectations_declare_is_not_rerun() -> None:
    """Neither a declared failure on the candidate nor one on the base that the candidate fixes."""
    good = [result(f"t{n}", outcome=Kind.PASSED) for n in range(3)]
    declared = [result(f"t{n}", outcome=Kind.EXPECTED_FAILURE, message="no") for n in range(2)]
    sides = [
        report(good[0], declared[1], good[2]),
        report(declared[0], good[1], case("t2", works=False)),
    ]
    comparison = compare(sides[:1], sides[1:])
    assert len(comparison.of(Verdict.REGRESSED, Verdict.FIXED)) == 3
    assert chosen(comparison, 3) == [key("t2")]
    assert len(chosen(comparison, 3, every_cause=True)) == 3
    everything = compare(sides[:1], sides[1:], sides[:1], sides[1:])
    assert rested(comparison).endswith(
        "flaky cases may be among it. What expectations declare is not rerun."
    )
    only = rested(with_basis(comparison, everything, [key("t2")]))
    assert (
        only == "Of what differs, rerun: 1; not rerun: 2. What expectations declare is not rerun."
    )
    every = rested(with_basis(comparison, everything, [key(f"t{n}") for n in range(3)]))
    assert every == "All that differs was rerun."
    # A declared failure that proves flaky is one to look at.
    flaky = compare(sides[:1], sides[1:], [], [report(case("t0", works=True))])
    assert sorted(chosen(flaky, 3)) == [key("t0"), key("t2")]


def compare_again(names: Iterable[str], first: Iterable[str], works: Iterable[str]) -> Comparison:
    reruns = [case(k[6:8], works=k[6:8] in works) for k in first]
    base = [case(k[6:8], works=True) for k in first]
    return compare(
        [all_of(names, works=True)],
        [all_of(names, works=False)],
        [report(*base)],
        [report(*reruns)],
    )


def test_what_each_finding_rests_on() -> None:
    names = [f"t{n}" for n in range(6)]
    first = regressed(names)
    keys = chosen(first, 3)
    stable = with_basis(first, compare_again(names, first=keys, works=()), keys)
    rests = {f.key: f.rerun_cases for f in stable.findings}
    assert rests[key("t0")] == (key("t0"),)
    assert rests[key("t5")] == tuple(keys)
    assert basis(stable.findings) == "rerun: 3, for 3 others"
    shaken = with_basis(first, compare_again(names, first=keys, works=("t1",)), keys)
    assert {f.key: f.rerun_cases for f in shaken.findings}[key("t5")] == ()
    assert basis(shaken.findings) == "rerun: 3; not rerun: 3"


def test_a_rerun_without_an_answer_speaks_for_nobody() -> None:
    """Both sides must have measured the case again."""
    names = ["t0", "t1"]
    sides = Sides(([all_of(names, works=True)], [all_of(names, works=False)]), (STACK, STACK))
    skipped = result("t0", outcome=Kind.SKIPPED)
    again = [[all_of(names, works=True)], [report(skipped, case("t1", works=False))]]
    assert sides.rerun(again) == {key("t1")}
    assert sides.rerun([[], []]) == set()


def test_a_plain_test_is_rerun_on_each_of_its_lanes() -> None:
    """Its id names no lane, and so is the same on all of them."""
    lanes = ("tpu-aot", "virtual-tpu")
    reports = [
        report(*(case("t", works=works, id="t.py::t", lane=lane) for lane in lanes))
        for works in (True, False)
    ]
    comparison = compare(reports[:1], reports[1:])
    again = results_of(comparison, chosen(comparison, 3))
    assert sorted((r.lane, r.id) for r in again) == [(lane, "t.py::t") for lane in lanes]


def test_reports_alone_are_final_at_once(tmp_path: Path) -> None:
    sides = Sides(([all_of(["t"], works=True)], [all_of(["t"], works=False)]), (None, None))
    runner = Runner(Environments(tmp_path), tmp_path, (), print)
    (only,) = steps(sides, runner, Effort())
    assert not only.open
    assert only.findings[0].rerun_cases == ()
