"""The grid of JAX by libtpu, from results."""

from __future__ import annotations

import pytest

from harness import cli
from harness.junit.report import Result
from harness.model.outcome import Kind
from harness.verdicts import skew


def result(outcome: Kind = Kind.PASSED, failure: str = "", signal: str = "") -> Result:
    properties = {"signal": signal} if signal else {}
    return Result("x.py::t", "tpu-aot", "v5e:2x2", outcome, failure, "", "", 1.0, properties)


GRID = skew.Grid(
    {
        ("0.0.23", "0.7.1"): (result(), result()),
        ("0.0.21", "0.7.1"): (result(), result(Kind.FAILED, "expected <= 7\nbut got 8")),
        ("0.0.12", "0.7.1"): (result(Kind.CRASHED, "died of SIGSEGV", "SIGSEGV"),) * 2,
    }
)
ROWS, COLUMNS = ("0.0.12", "0.0.21", "0.0.23", "0.0.99"), ("0.7.1",)


def test_a_cell_says_what_its_programs_came_to() -> None:
    answers = [GRID.answer(row, "0.7.1") for row in ROWS]
    assert answers == ["crashed SIGSEGV 2", "refused 1, works 1 of 2", "works 2 of 2", "no answer"]


def test_the_grid_names_its_reasons() -> None:
    shown = "\n".join(skew.text(GRID, ROWS, COLUMNS))
    assert "   2  died of SIGSEGV" in shown
    assert "   1  expected <= 7 but got 8" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_the_grid_as_markdown() -> None:
    lines = skew.markdown(GRID, ROWS, COLUMNS).splitlines()
    assert lines[:2] == ["| libtpu | jax 0.7.1 |", "| --- | --- |"]
    assert "| 0.0.21 | refused 1, works 1 of 2 |" in lines
    assert "- 1: `expected <= 7 but got 8`" in lines


def test_the_grid_as_data() -> None:
    first, *_ = GRID.data()
    assert first == {
        "libtpu": "0.0.23",
        "jax": "0.7.1",
        "answer": "works 2 of 2",
        "outcomes": {"x.py::t": "passed"},
    }


def test_an_unknown_stack_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ci", "skew", "--jax=0.7.1", "--libtpu=0.0.23", "--stack=2.9"]) == 2
    assert "stack '2.9': did you mean" in capsys.readouterr().err
