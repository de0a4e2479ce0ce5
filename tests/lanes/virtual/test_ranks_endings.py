"""A job ends as on hardware, whatever its last statement was and whoever holds the GIL then."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("endings.py")
CODES = {
    "last_statement": ["0", "0"],
    "exits": ["3", "3"],
    "raises": ["1", "1"],  # the other one hears that the rank has ended
    "thread": ["0", "0"],
    "hook": ["0", "0"],
    "forks": ["0", "0"],
    "holds": ["0", "0"],
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("framework", "endings"),
    [
        ("torch_xla", ["last_statement", "hook"]),
        ("jax", ["exits", "hook", "thread", "forks", "raises", "holds"]),
    ],
)
def test_job_ends(framework: str, endings: list[str]) -> None:
    """Whoever holds the GIL, in C or in an exit hook, may be waiting for the execution."""
    done = subprocess.run(
        [sys.executable, SCRIPT, framework, *endings],
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=500,
        check=False,
    )
    ended = {name: codes for name, *codes, _ in map(str.split, done.stdout.splitlines())}
    assert ended == {name: CODES[name] for name in endings}, done.stderr
