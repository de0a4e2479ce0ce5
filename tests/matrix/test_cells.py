"""Which cells a command runs."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import pytest
from support.paths import ROOT

from harness.commands.matrix import cells_of
from harness.matrix import source_digests
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


PLAIN = "import test_imported\n"
COMPUTED = "import importlib\ndef test_x(name): importlib.import_module(f'{}.{{name}}')\n"


@pytest.mark.parametrize(
    ("text", "edited", "changes"),
    [
        (PLAIN, "suites/test_a.py", True),
        (PLAIN, "suites/test_imported.py", True),
        (PLAIN, "suites/test_other.py", False),
        (PLAIN, "suites/helper.py", True),
        (PLAIN, "suites/test_data.toml", True),
        (PLAIN, "suites/rows.txt", True),
        (PLAIN, "reports/1/rows.txt", False),
        (COMPUTED.format("suites"), "suites/test_other.py", True),
        (COMPUTED.format("numpy"), "suites/test_other.py", False),
    ],
)
def test_an_edit_changes_what_chosen_cases_depend_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, edited: str, *, changes: bool
) -> None:
    put(tmp_path, "pyproject.toml", "suites/test_other.py", "suites/helper.py")
    put(tmp_path, "suites/test_imported.py", "suites/test_data.toml", "suites/test_a.py")
    put(tmp_path, "suites/rows.txt", "reports/1/rows.txt")
    (tmp_path / "suites/test_a.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    stack = Catalogue(ROOT / "fixtures/stacks").find("2.9.0")
    whole = Cell(stack, "cpu", tmp_path / "reports/1", ("suites",))
    few = replace(whole, cases=("suites/test_a.py::test_x[cpu]",))
    before = [cell.asks(Environment(tmp_path)) for cell in (whole, few)]
    with (tmp_path / edited).open("a") as file:
        file.write("# edited\n")
    source_digests._imports.cache_clear()
    source_digests._shared.cache_clear()
    source_digests._data.cache_clear()
    after = [cell.asks(Environment(tmp_path)) for cell in (whole, few)]
    assert [old != new for old, new in zip(before, after, strict=True)] == [
        not edited.startswith("reports"),
        changes,
    ]


def test_a_variable_that_xla_reads_is_another_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "suites/test_a.py")
    monkeypatch.chdir(tmp_path)
    stack = Catalogue(ROOT / "fixtures/stacks").find("2.9.0")
    cell = Cell(stack, "cpu", tmp_path, ("suites",))
    before = cell.asks(Environment(tmp_path))
    monkeypatch.setenv("NAME_OF_A_SHELL", "1")
    assert cell.asks(Environment(tmp_path)) == before
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=dumps")
    assert cell.asks(Environment(tmp_path)) != before


def put(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
