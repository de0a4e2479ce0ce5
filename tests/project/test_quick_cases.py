"""``pytest suites/ --quick``: each of its cases is there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]


def test_each_case_is_collected() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "suites/", "--quick", "--collect-only", "-q"],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    expected = set((_ROOT / "fixtures/quick.txt").read_text().split("\n")) - {""}
    assert expected <= set(done.stdout.splitlines())
