"""``pytest suites/ --quick``: each of its cases is there."""

from __future__ import annotations

import sys

import pytest
from support.commands import run_program
from support.paths import ROOT


@pytest.mark.long
def test_each_case_is_collected() -> None:
    done = run_program(
        sys.executable, "-m", "pytest", "suites/", "--quick", "--collect-only", "-q", cwd=ROOT
    )
    assert done.returncode == 0, done.stdout
    expected = set((ROOT / "fixtures/quick.txt").read_text().split("\n")) - {""}
    assert expected <= set(done.stdout.splitlines())
