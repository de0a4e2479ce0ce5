"""Which faults are planned: spread, repeatable, none twice."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from harness.sensitivity.fault import STALE, Fault, Recorded
from harness.sensitivity.sample import Sample, planned

AREAS = {"a.py::one": "a", "a.py::two": "a", "b.py::one": "b"}
OPERATORS = ("narrowed", "constant-off", STALE)


def program(digest: str, signature: str = "s", **places: int) -> Recorded:
    opcodes = {name.replace("_", "-"): ["dot"] * count for name, count in places.items()}
    return Recorded(digest, opcodes, signature, f"jit_{digest}")


PROGRAMS = {
    "a.py::one": [program("1", narrowed=1, constant_off=100)],
    "a.py::two": [program("2", constant_off=100), program("3", "other")],
    "b.py::one": [program("4", constant_off=3), program("5"), program("6")],
}


def plan(most: int = 1000, seed: int = 0) -> list[Fault]:
    return planned(AREAS, PROGRAMS, OPERATORS, Sample(seed, most))


def test_each_place_once() -> None:
    faults = plan()
    assert [fault.number for fault in faults] == list(range(len(faults)))
    assert len({replace(fault, number=0) for fault in faults}) == len(faults) == 206


def test_areas_and_operators_take_turns() -> None:
    turns = Counter((AREAS[fault.case], fault.operator) for fault in plan(8))
    kinds = {("a", "narrowed"), ("a", "constant-off"), ("b", "constant-off"), ("b", STALE)}
    assert set(turns) == kinds
    of_two = Counter(fault.case for fault in plan(40) if fault.operator == "constant-off")
    assert abs(of_two["a.py::one"] - of_two["a.py::two"]) <= 1


def test_each_line_of_python_has_its_turn_before_any_has_a_second() -> None:
    common = Recorded("m:f:1", {"python-number": [f"line {n}" for n in range(9)]}, "", "")
    rare = Recorded("m:g:20", {"python-number": ["line 20"]}, "", "")
    cases = {f"a.py::{n}": [common] for n in range(50)} | {"a.py::rare": [common, rare]}
    areas = dict.fromkeys(cases, "a")
    faults = planned(areas, cases, ("python-number",), Sample(0, 10, ("a.py::7",)))
    assert len({fault.where for fault in faults}) == 10
    assert {fault.case for fault in faults} == {"a.py::7", "a.py::rare"}


def test_a_longer_plan_begins_with_the_shorter_one() -> None:
    assert plan(50)[:10] == plan(10)


def test_the_seed_decides() -> None:
    assert plan(10, seed=1) == plan(10, seed=1)
    assert plan(10, seed=1) != plan(10, seed=2)


def test_a_stale_program_has_the_signature_of_the_next() -> None:
    stale = {(fault.other, fault.program) for fault in plan() if fault.operator == STALE}
    assert stale == {("4", "5"), ("5", "6")}


@pytest.mark.parametrize("most", [0, 1])
def test_no_more_than_asked_for(most: int) -> None:
    assert len(plan(most)) == most
