"""Which cells a command runs."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from support.paths import ROOT

from harness.commands.matrix import cells_of
from harness.matrix.cell import Cell
from harness.stacks.catalogue import Catalogue
from harness.stacks.environments import Environment


@pytest.mark.parametrize(
    ("once", "left"),
    [(False, [(), ()]), (True, [(), ("virtual-tpu",)])],
)
def test_a_case_runs_on_each_lane_or_on_the_first(
    tmp_path: Path, *, once: bool, left: list[tuple[str, ...]]
) -> None:
    stacks = [Catalogue(ROOT / "fixtures/stacks").find("2.9.0")]
    options = argparse.Namespace(lanes="virtual-tpu,cpu", arguments=[])
    cells = cells_of(stacks, options, tmp_path, once=once)
    assert [cell.lane for cell in cells] == ["virtual-tpu", "cpu"]
    assert [cell.elsewhere for cell in cells] == left


@pytest.mark.parametrize(
    ("cases", "places"),
    [
        (None, ["suites", "-q"]),
        (
            ("suites/b.py::test_b[cpu-1]", "suites/a.py::test_a"),
            ["suites/a.py", "suites/b.py", "-q"],
        ),
        (("suites/gone.py::test_a",), ["suites", "-q"]),
    ],
)
def test_only_the_files_of_chosen_cases_are_collected(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cases: tuple[str, ...] | None,
    places: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "suites").mkdir()
    for name in "ab":
        (tmp_path / "suites" / f"{name}.py").touch()
    stack = Catalogue(ROOT / "fixtures/stacks").find("2.9.0")
    cell = Cell(stack, "cpu", tmp_path, ("suites", "-q"), cases)
    command = cell._command(Environment(tmp_path), tmp_path, fresh=False)
    assert [word for word in command if word == "-q" or word.startswith("suites")] == places
