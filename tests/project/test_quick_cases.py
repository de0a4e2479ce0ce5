"""``pytest suites/ --quick``: each of its cases is there."""

from __future__ import annotations

import subprocess
import sys

from support.paths import ROOT


def test_each_case_is_collected() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "suites/", "--quick", "--collect-only", "-q"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    expected = set((ROOT / "fixtures/quick.txt").read_text().split("\n")) - {""}
    assert expected <= set(done.stdout.splitlines())
