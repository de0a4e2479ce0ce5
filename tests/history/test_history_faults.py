"""The Nth read, write, sync or rename of a command fails, for each N: nothing is lost or a lie.

As SQLite is tested: the calls fail in the C library, in the command and in the git that it starts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.commands import failing_calls, run_program
from support.junit_text import case, report
from support.paths import ROOT

from harness.errors import PARTIAL
from harness.history.branch import Branch
from harness.history.store import History

pytestmark = pytest.mark.long
TRIALS = Path(__file__).parent / "trials.py"
STATE = 32 + 4096  # bytes
Trial = dict[str, Any]


@pytest.fixture(scope="module")
def preloaded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return failing_calls(tmp_path_factory.mktemp("faults"))


def _report(path: Path, night: int) -> Path:
    time = f"2026-11-{night:02}T02:30:00"
    return report(path, case("a"), time=time, stack="2.9.0", torch_xla="2.9.0")


@pytest.fixture
def template(tmp_path: Path) -> Path:
    """A folder with a history of two nights, and a branch with the first of them."""
    folder = tmp_path / "template"
    history = History(folder / "history")
    # Without git's examples of hooks, as each trial starts with a copy.
    options = ["--quiet", "--bare", "--template="]
    subprocess.run(["git", "init", *options, folder / "remote.git"], check=True)
    for night in (10, 11):
        history.record([_report(tmp_path / f"{night}.xml", night)])
        if night == 10:
            Branch(str(folder / "remote.git"), "history").push(folder / "history")
    return folder


def _trials(
    preloaded: Path, template: Path, line: list[str], below: tuple[str, ...], step: int = 1
) -> tuple[Trial, list[Trial]]:
    """What the command says without a fault, and with each, or each ``step``th after the first."""
    state, folder = template.parent / "state", template.parent / "trial"
    state.write_bytes(bytes(STATE))
    own = {
        "LD_PRELOAD": str(preloaded),
        "FAILING_CALLS": str(state),
        "FAILING_BELOW": ":".join(str(folder / each) for each in below),
        "PYTHONPATH": str(ROOT),
    }
    paths = [str(path) for path in (TRIALS, state, template, folder)]
    done = run_program(sys.executable, *paths, str(step), *line, env=os.environ | own, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    first, *others = [json.loads(text) for text in done.stdout.splitlines()]
    assert first["code"] in (0, PARTIAL), first
    for trial in others:
        assert "Traceback" not in trial["err"], trial
        assert trial["code"] in (first["code"], 2, PARTIAL), trial
        assert trial["code"] == 0 or trial["err"], trial
    return first, others


def _told(out: str) -> set[str]:
    return {line.split()[0] for line in out.splitlines() if not line.startswith("lost: ")}


def test_record(preloaded: Path, template: Path) -> None:
    reports = [str(_report(template.parent / f"{night}.xml", night)) for night in (12, 13)]
    line = ["record", *reports, "--history", str(template.parent / "trial/history")]
    first, others = _trials(preloaded, template, line, ("history",))
    assert len(others) > 15
    assert any(trial["code"] == 2 for trial in others)
    for trial in others:
        assert _told(trial["out"]) <= set(trial["whole"]), trial
        assert trial["again"]["code"] == 0, trial
        assert trial["again"]["whole"] == first["whole"], trial


def test_collect(preloaded: Path, template: Path) -> None:
    """A night of which a cell died, so that the history is read as well."""
    cells = template.parent / "cells"
    _report(cells / "2.9.0/cpu-1of2.xml", 12)
    line = ["ci", "collect", str(cells), "--night", '[{"stack": "2.9.0", "wheels": ""}]']
    line += ["--lanes", "cpu", "--shard", "2", "--time", "2026-11-12T02:30:00Z"]
    line += ["--history", str(template.parent / "trial/history")]
    first, others = _trials(preloaded, template, line, ("history",))
    assert first["code"] == PARTIAL
    assert len(others) > 15
    for trial in others:
        assert _told(trial["out"]) <= set(trial["whole"]), trial
        assert trial["again"]["code"] == PARTIAL, trial
        assert trial["again"]["whole"] == first["whole"], trial


def test_verdict(preloaded: Path, template: Path) -> None:
    line = ["verdict", "latest", "--history", str(template.parent / "trial/history")]
    first, others = _trials(preloaded, template, line, ("history",), 20)
    assert len(others) > 10
    for trial in others:
        same = (trial["code"], trial["out"]) == (first["code"], first["out"])
        assert same or "set aside: " in trial["err"] or trial["code"] == 2, trial


@pytest.mark.parametrize(("below", "step"), [("history", 1), ("remote.git", 5)])
def test_push(preloaded: Path, template: Path, below: str, step: int) -> None:
    """In the history, and in the remote repository that git writes."""
    trial_folder = template.parent / "trial"
    line = ["ci", "history", "push", str(trial_folder / "history")]
    line += ["--remote", str(trial_folder / "remote.git")]
    first, others = _trials(preloaded, template, line, (below,), step)
    assert first["out"] == "pushed=1\n"
    assert len(others) > 10
    for trial in others:
        assert trial["again"]["code"] == 0, trial
        assert trial["again"]["whole"] == first["whole"], trial
