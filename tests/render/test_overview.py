"""Several stacks side by side."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.two_stacks import report, result

from harness.model.outcome import Kind
from harness.render import overview
from harness.verdicts.upstream import Row

P, F, S = Kind.PASSED, Kind.FAILED, Kind.SKIPPED
ROWS = [
    Row(title="sums are right", issues=("pytorch/xla#1",), cases=("a.py::x*",)),
    Row(
        title="... and their types", issues=("pytorch/xla#2",), cases=("a.py::y*",), layer="numbers"
    ),
]
OLD = report(result("x0", outcome=F, layer="trace"), result("y", outcome=F, layer="trace"))
MIDDLE = report(
    result("x0", outcome=P), result("x1", outcome=P), result("y", outcome=F, layer="numbers")
)
NEW = report(
    result("x0", outcome=P),
    result("x1", outcome=F, layer="trace", message="RuntimeError: a | b"),
    result("y", outcome=S, message="no device"),
)
COLUMNS = [("2.4.0", [OLD]), ("2.5.1", [MIDDLE]), ("2.9.0", [NEW])]


def test_text() -> None:
    lines = list(overview.text(COLUMNS, ROWS))
    assert lines[:6] == [
        "-------------------------- what each stack gets right --------------------------",
        "  2.4.0      2.5.1      2.9.0",
        "sums are right pytorch/xla#1",
        "  wrong 0/1  ok 2/2     wrong 1/2",
        "... and their types pytorch/xla#2",
        "  - 0/1      wrong 0/1  - 0/1",
    ]
    assert lines[7:10] == ["  2.4.0    2.5.1    2.9.0", "a", "  0/2/0/1  2/1/0/0  1/1/1/0"]
    shown = "\n".join(lines)
    assert "--- 2.4.0 to 2.5.1: 1 fixed ---" in shown
    assert "--- 2.5.1 to 2.9.0: 1 regressed, 1 missing ---" in shown
    assert "skipped: no device" in shown


def test_markdown() -> None:
    shown = overview.markdown(COLUMNS, ROWS)
    issue = "[pytorch/xla#1](https://github.com/pytorch/xla/issues/1)"
    assert f"| sums are right | {issue} | wrong 0/1 | ok 2/2 | wrong 1/2 |" in shown
    assert "| a | 0/2/0/1 | 2/1/0/0 | 1/1/1/0 |" in shown
    assert "## 2.5.1 to 2.9.0: 1 regressed, 1 missing" in shown
    assert "`RuntimeError: a \\| b`" in shown


@pytest.mark.parametrize("length", [5, 30, 100])
def test_many_stacks_wrap(length: int) -> None:
    names = [f"2.{i}.0".ljust(length, "x") for i in range(12)]
    lines = list(overview.text([(name, [NEW]) for name in names], ROWS))
    assert max(map(len, lines)) <= 80
    heads = [line for line in lines if line.startswith("  2.")]
    shown = [name for line in heads for name in line.split()]
    assert [name[:6] for name in shown] == [name[:6] for name in names] * 2
    assert (len(heads) > 2) == (length * 12 > 40)


def test_lanes_of_a_stack_are_added_up() -> None:
    lane = replace(result("x9", outcome=P), lane="virtual-tpu", id="a.py::x9[virtual-tpu-4]")
    lines = list(overview.text([("2.9.0", [MIDDLE, report(lane)])], ROWS))
    assert lines[3] == "  ok 3/3"


def test_a_stack_without_a_report() -> None:
    lines = list(overview.text([("2.4.0", []), ("2.9.0", [NEW])], ROWS))
    assert "  - 0/0      wrong 1/2" in lines
    assert "  0/0/0/3  1/1/1/0" in lines
