"""A night's cells into a history: what a dead cell lost is recorded with its cause."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.junit_text import case, report

from harness import cli
from harness.errors import PARTIAL
from harness.history.store import History
from harness.verdicts.nightly import judge
from harness.verdicts.words import Verdict

NIGHT = json.dumps([{"stack": "2.9.0", "wheels": ""}, {"stack": "2.5.1", "wheels": "wheels"}])
LANES = ("cpu", "virtual-tpu")


def _report(path: Path, stack: str, lane: str, *names: str) -> None:
    place = {"lane": lane, "upstream": "pytorch/xla#8522"}
    cases = [case(name, id=f"suites/a/test_a.py::{name}", **place) for name in names]
    report(path, *cases, stack=stack, torch_xla=stack[:5], python="3.11")


class Night:
    """The folder into which a night's artifacts were downloaded."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.history = folder / "cells", folder / "history"
        self.day = 0

    def cell(self, stack: str, lane: str, number: int) -> Path:
        """Where a cell's report lies; + is kept in names."""
        name = f"junit-{stack}-{lane}-{number}of2"
        return self.folder / name / stack / f"{lane}-{number}of2.xml"

    def fill(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        for stack in ("2.9.0", "2.5.1+wheels"):
            for lane in LANES:
                for number in (1, 2):
                    path = self.cell(stack, lane, number)
                    _report(path, stack, lane, f"test_{number}", f"test_{number}b")

    def collect(self, code: int = 0) -> None:
        self.day += 1
        command = ["ci", "collect", str(self.folder), "--night", NIGHT, "--shard", "2"]
        command += ["--lanes", ",".join(LANES), "--history", str(self.history)]
        command += ["--time", f"2026-11-{self.day:02}T02:30:00Z", "--commit", "abc"]
        assert cli.main(command) == code

    def rows(self, columns: str) -> list[tuple[Any, ...]]:
        night = f"day(date) = {self.day}"
        sql = f"SELECT {columns} FROM cases WHERE {night}"
        return History(self.history).ask(lambda connection: connection.execute(sql).fetchall())

    def verdicts(self) -> dict[str, list[str]]:
        history = History(self.history)
        runs = [run for (run,) in self.rows("DISTINCT run")]
        missing = history.ask(lambda connection: judge(connection, runs)).of(Verdict.MISSING)
        return {v.case.rpartition("::")[2]: [v.stack, v.lane, v.message] for v in missing}


@pytest.fixture
def night(tmp_path: Path) -> Night:
    made = Night(tmp_path)
    made.fill()
    return made


def test_a_stack_is_a_run_of_all_its_cells(night: Night) -> None:
    night.collect()
    rows = night.rows("stack, lane, outcome")
    assert len(rows) == 16
    assert {(stack, lane) for stack, lane, _ in rows} == {
        (stack, lane) for stack in ("2.9.0", "2.5.1+wheels") for lane in LANES
    }
    assert len(night.rows("DISTINCT run")) == 2
    assert night.verdicts() == {}


def test_a_dead_shard_loses_its_cases_with_the_cause(night: Night) -> None:
    night.collect()
    path = night.cell("2.9.0", "cpu", 2)
    path.unlink()
    path.with_suffix(".died").write_text("2.9.0 cpu-2of2: no answer (SIGKILL)")
    night.collect(PARTIAL)
    rows = night.rows('stack, lane, "case", outcome, message')
    lost = [row for row in rows if row[3] == "skipped"]
    assert [(s, lane, c.rpartition("::")[2]) for s, lane, c, *_ in sorted(lost)] == [
        ("2.9.0", "cpu", "test_2"),
        ("2.9.0", "cpu", "test_2b"),
    ]
    assert all(
        row[4].startswith("not run: cell cpu 2/2: 2.9.0 cpu-2of2: no answer") for row in lost
    )
    assert set(night.verdicts()) == {"test_2", "test_2b"}
    night.fill()
    night.collect()
    assert night.verdicts() == {}


def test_a_lane_whose_jobs_left_nothing_is_missing_too(night: Night) -> None:
    night.collect()
    for number in (1, 2):
        shutil.rmtree(night.cell("2.9.0", "virtual-tpu", number).parent.parent)
    night.collect(PARTIAL)
    assert {lane for _, lane, _ in night.verdicts().values()} == {"virtual-tpu"}
    assert all("lost its runner" in why for _, _, why in night.verdicts().values())
    assert len(night.verdicts()) == 4


def test_a_night_of_which_nothing_is_left_is_a_run(night: Night) -> None:
    night.collect()
    shutil.rmtree(night.folder)
    night.folder.mkdir()
    night.collect(PARTIAL)
    assert night.rows("count(*), count(DISTINCT stack), any_value(outcome)") == [(16, 2, "skipped")]


def test_the_first_night_of_a_stack_takes_what_another_stack_ran(night: Night) -> None:
    for lane in LANES:
        for number in (1, 2):
            night.cell("2.5.1+wheels", lane, number).unlink()
    night.collect(PARTIAL)
    rows = night.rows("stack, outcome")
    assert rows.count(("2.5.1+wheels", "skipped")) == 8


def test_the_very_first_night_has_a_line_for_a_dead_cell(night: Night) -> None:
    shutil.rmtree(night.folder)
    night.folder.mkdir()
    night.collect(PARTIAL)
    assert ("cell of lane cpu", "skipped") in night.rows('"case", outcome')


def test_a_report_that_is_cut_off_loses_what_is_behind_the_cut(night: Night) -> None:
    night.collect()
    path = night.cell("2.9.0", "cpu", 1)
    path.write_text(path.read_text()[:-40])
    night.collect(PARTIAL)
    assert set(night.verdicts()) == {"test_1b"}
    (_, _, why) = night.verdicts()["test_1b"]
    assert f"cell cpu 1/2: {path}: cut off or damaged: unclosed token" in why


@pytest.mark.parametrize(
    ("option", "value"), [("--night", "[1]"), ("--night", "{"), ("--time", "yesterday")]
)
def test_bad_input(
    night: Night, option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [
        "ci",
        "collect",
        str(night.folder),
        "--lanes",
        "cpu",
        "--history",
        str(night.history),
    ]
    given = {"--night": NIGHT, "--time": "2026-11-21"} | {option: value}
    command += [part for pair in given.items() for part in pair]
    assert cli.main(command) == 2
    assert option in capsys.readouterr().err
    assert not night.history.exists()


# A cell costs itself at most, and speaks for nobody else.


def _changed(path: Path, *changes: tuple[str, str]) -> None:
    text = path.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)


def test_a_cell_with_another_python_costs_itself(night: Night) -> None:
    """3.11.9 beside 3.11.10: before, the whole night was lost, of all stacks."""
    night.collect()
    path = night.cell("2.9.0", "cpu", 2)
    _changed(path, ('"python" value="3.11"', '"python" value="3.11.9"'))
    night.collect(PARTIAL)
    why = "python: expected '3.11', as in 3 of 4 cells, found '3.11.9'"
    assert night.verdicts() == {
        name: ["2.9.0", "cpu", f"not run: cell cpu 2/2: {why}"] for name in ("test_2", "test_2b")
    }
    assert sorted(night.rows("DISTINCT stack, python")) == [
        ("2.5.1+wheels", "3.11"), ("2.9.0", "3.11"),
    ]  # fmt: skip


FORGED = {
    "another stack": (
        ('"stack" value="2.9.0"', '"stack" value="2.5.1+wheels"'),
        "property 'stack': expected '2.9.0', as the cell's, found '2.5.1+wheels'",
    ),
    "no stack": (
        ('"stack" value="2.9.0"', '"other" value="2.9.0"'),
        "property 'stack': expected '2.9.0', as the cell's, found 'unknown'",
    ),
    "another lane": (
        ('"lane" value="cpu"', '"lane" value="virtual-tpu"'),
        "test case 'suites/a/test_a.py::test_1': expected lane cpu, as the cell's, found 'virtual",
    ),
    "another version": (
        ('"torch_xla" value="2.9.0"', '"torch_xla" value="2.5.1"'),
        "not as the cell's stack pins it: torch_xla: expected ==2.9.0, found '2.5.1'",
    ),
    "no version": (
        ('"torch_xla" value="2.9.0"', '"torch_xla" value="not installed"'),
        "not as the cell's stack pins it: torch_xla: expected ==2.9.0, found 'not installed'",
    ),
    "another Python": (
        ('"python" value="3.11"', '"python" value="3.12"'),
        "not as the cell's stack pins it: python: expected ==3.11.*, found '3.12'",
    ),
}


@pytest.mark.parametrize("kind", FORGED)
def test_a_cell_speaks_for_its_own_stack_and_lane(night: Night, kind: str) -> None:
    night.collect()
    change, why = FORGED[kind]
    _changed(night.cell("2.9.0", "cpu", 1), change, ('value="passed"', 'value="failed"'))
    night.collect(PARTIAL)
    verdicts = night.verdicts()
    assert set(verdicts) == {"test_1", "test_1b"}
    assert verdicts["test_1"][:2] == ["2.9.0", "cpu"]
    assert why in verdicts["test_1"][2]
    assert sorted(night.rows("DISTINCT stack, outcome")) == [
        ("2.5.1+wheels", "passed"), ("2.9.0", "passed"), ("2.9.0", "skipped"),
    ]  # fmt: skip


def test_two_answers_of_one_cell_are_named(
    night: Night, capsys: pytest.CaptureFixture[str]
) -> None:
    night.collect()
    path = night.cell("2.9.0", "cpu", 1)
    other = night.folder / "2.9.0" / path.name
    _report(other, "2.9.0", "cpu", "test_1", "test_1b")
    night.collect(PARTIAL)
    why = f"expected one answer, found {other}, {path}"
    assert f"left out: 2.9.0 cpu 1/2: {why}" in capsys.readouterr().err
    assert night.verdicts()["test_1"][2] == f"not run: cell cpu 1/2: {why}"


def test_another_cells_artifact_has_no_say(
    night: Night, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cell is lost; what lies under its name in another one's artifact is not its answer."""
    night.collect()
    path = night.cell("2.9.0", "cpu", 1)
    forged = night.folder / "junit-2.5.1+wheels-cpu-1of2" / "2.9.0" / path.name
    forged.parent.mkdir()
    path.rename(forged)
    night.collect(PARTIAL)
    assert f"left out: {forged}: expected the report of a planned cell" in capsys.readouterr().err
    assert set(night.verdicts()) == {"test_1", "test_1b"}


def test_cells_of_one_folder(night: Night) -> None:
    """As `matrix` leaves them on one machine, without artifacts."""
    for artifact in list(night.folder.iterdir()):
        shutil.copytree(artifact, night.folder, dirs_exist_ok=True)
        shutil.rmtree(artifact)
    night.collect()
    assert len(night.rows("*")) == 16


def test_one_bad_case_of_a_cell_costs_itself(night: Night) -> None:
    night.collect()
    path = night.cell("2.9.0", "cpu", 1)
    _changed(path, ('name="test_1b" time="1"', 'name="test_1b" time="-1"'))
    night.collect(PARTIAL)
    assert night.verdicts() == {
        "test_1b": [
            "2.9.0", "cpu", "can't be read: attribute 'time': expected seconds, found '-1'",
        ]
    }  # fmt: skip
