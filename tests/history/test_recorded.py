"""A recorded run as the base of a qualification: the same answer as from its report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.paths import ROOT

from harness import cli
from harness.history.store import History

JUNIT = ROOT / "fixtures" / "junit"


@pytest.fixture
def history(tmp_path: Path) -> str:
    History(tmp_path / "history").record(
        [JUNIT / "2.5.1-cpu.xml", JUNIT / "2.8.0-cpu.xml", JUNIT / "2.9.0-cpu.xml"]
    )
    return str(tmp_path / "history")


def _qualify(tmp_path: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    target = tmp_path / "answer.json"
    out = ["--json", str(target), "--out", str(tmp_path / "out"), "--markdown", str(tmp_path / "m")]
    code = cli.main(["qualify", *arguments, *out])
    return code, json.loads(target.read_text())


def test_the_findings_are_the_reports(tmp_path: Path, history: str) -> None:
    """2.9.0's run recorded, against 2.5.1's report, says what both reports say."""
    base, candidate = str(JUNIT / "2.9.0-cpu.xml"), str(JUNIT / "2.5.1-cpu.xml")
    run = next(n for n in History(history).files.listed().names if "stack=2.9.0" in n)
    name = Path(run).stem
    wanted = _qualify(tmp_path, base, candidate)
    assert wanted[0] == 1
    assert len(wanted[1]["cases"]) > 100
    assert _qualify(tmp_path, name, candidate, "--history", history) == wanted


def test_latest_is_the_newest_run_of_the_candidates_stack(tmp_path: Path, history: str) -> None:
    for stack in ("2.8.0", "2.9.0"):
        report = str(JUNIT / f"{stack}-cpu.xml")
        code, answer = _qualify(tmp_path, "latest", report, "--history", history)
        assert code == 0
        assert {case["verdict"] for case in answer["cases"]} <= {"still failing"}


def test_a_stack_without_a_run_is_named(
    tmp_path: Path, history: str, capsys: pytest.CaptureFixture[str]
) -> None:
    del tmp_path
    report = str(JUNIT / "2.9.0-cpu.xml")
    assert cli.main(["qualify", "2026", report, "--history", f"{history}-none"]) == 2
    assert "expected one of" in capsys.readouterr().err


def test_annotations_stand_beside_the_file(
    tmp_path: Path, history: str, capsys: pytest.CaptureFixture[str]
) -> None:
    base, candidate = str(JUNIT / "2.9.0-cpu.xml"), str(JUNIT / "2.5.1-cpu.xml")
    del history
    _qualify(tmp_path, base, candidate, "--annotations")
    annotations = [line for line in capsys.readouterr().out.splitlines() if line.startswith("::")]
    assert 0 < len(annotations) <= 10
    assert annotations[0].startswith("::error file=suites/")
    assert "title=regressed (expected)%3A " in annotations[0]
