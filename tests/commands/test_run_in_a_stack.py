"""``xla-harness run --stack``: a command with a stack's Python, and the lane's devices."""

from __future__ import annotations

from support.drift import GOOD, Drift

SHOW = """\
import os, shutil, sys, drift, harness.lanes
print(drift.double(3), shutil.which("python") == sys.executable, os.environ["CPU_NUM_DEVICES"])
print(sys.argv[1:])
"""


def test_a_command_runs_with_the_python_of_the_stack(drift: Drift) -> None:
    drift.stack("1", GOOD)
    command = ("run", "--stack", "1", "--lane", "cpu", "--topology", "8")
    ran = drift.run(*command, "--", "python", "-c", SHOW, "--stack", "x")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == ["6 True 8", "['--stack', 'x']"]
    refused = drift.run(*command, "--", "python", "-c", SHOW, JAX_PLATFORMS="cuda")
    assert refused.returncode == 2
    assert "JAX_PLATFORMS" in refused.stderr
    assert "stack 'on': " in drift.run("run", "--stack", "on", "--", "python").stderr
