"""Threads and processes that run out are named as such, with the limit, whoever notices first."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands import run_program
from support.control_groups import control_group
from support.project import Project

from harness.isolation import thread_limits

LIMIT = 16
MOVE = "from pathlib import Path\nPath({file!r}).write_text(str(os.getpid()))\n"
CASES = """
import subprocess
import threading
import time

from harness.isolation.ranks import fork_ranks

pytestmark = pytest.mark.lanes("cpu")

def start_jax(number):
    import jax
    jax.devices()

def test_threads():
    for _ in range(100):
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()

def test_command():
    for _ in range(100):
        subprocess.Popen(["sleep", "60"])

@pytest.mark.topologies(32)
def test_jax():
    start_jax(0)

@pytest.mark.topologies(32)
def test_rank_of_jax():
    fork_ranks(start_jax, 1, deadline=50)

def test_ranks():
    fork_ranks(lambda number: time.sleep(60), 100, deadline=50)

def test_lock():
    raise BlockingIOError(11, "Resource temporarily unavailable")

def test_frugal():
    pass
"""


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group of a few threads and processes."""
    with control_group("pids", ("pids.max", "pids.max"), LIMIT) as folder:
        yield folder


def label(group: Path) -> str:
    most = f"at most {LIMIT} by {group / 'pids.max'}"
    return f"out of threads or processes ({most}; their stacks count as memory)"


def test_threads_that_run_out(project: Project, group: Path) -> None:
    project.write("conftest.py", MOVE.format(file=str(group / "cgroup.procs")))
    project.write("test_inner.py", CASES)
    ran = project.run()
    details = {name: ran.properties(name).get("outcome_detail", "") for name in ran.cases}
    why = label(group)
    assert details["test_threads"] == f"{why}: RuntimeError: can't start new thread"
    assert details["test_command"].startswith(f"{why}: BlockingIOError: [Errno 11]")
    assert details["test_jax[cpu-32]"].startswith("SIGABRT")
    assert f": {why}: " in details["test_jax[cpu-32]"]
    assert "creation via pthread_create() failed" in details["test_jax[cpu-32]"]
    assert details["test_rank_of_jax[cpu-32]"].startswith(f"{why}: ")
    assert "rank 0 of 1 was killed by SIGABRT" in details["test_rank_of_jax[cpu-32]"]
    assert f" of 100 can't be started: {why}" in details["test_ranks"]
    assert details["test_lock"].startswith("BlockingIOError: [Errno 11]")
    assert ran.outcomes["test_frugal"] == "passed"


def test_a_case_that_cannot_be_started(project: Project, group: Path) -> None:
    file = str(group / "pids.max")
    project.write(
        "conftest.py",
        MOVE.format(file=str(group / "cgroup.procs"))
        + f"def pytest_collection_finish():\n    Path({file!r}).write_text('1')\n",
    )
    project.write("test_inner.py", 'pytestmark = pytest.mark.lanes("cpu")\ndef test_x(): pass\n')
    ran = project.run()
    assert ran.code == 2, ran.stdout
    assert ran.shows("test_x[cpu-4]: can't be started: out of threads or processes (at most 1 by")


def test_a_command_that_cannot_be_started(group: Path) -> None:
    move = MOVE.format(file=str(group / "cgroup.procs"))
    main = "from harness.cli import main\nsys.exit(main(sys.argv[1:]))"
    arguments = ("run", "--topology", "2x16@chip", "--", "sleep", "60")
    ran = run_program(sys.executable, "-c", f"import os, sys\n{move}{main}", *arguments)
    assert ran.returncode == 2, ran.stderr
    assert f" of 32 can't be started: {label(group)}" in ran.stderr


@pytest.mark.parametrize(
    ("text", "is_out"),
    [
        ("instance of 'std::system_error'\n  what():  Resource temporarily unavailable", True),
        ("LLVM ERROR: pthread_create failed: Resource temporarily unavailable", True),
        ("\nlibgomp: Thread creation failed: Resource temporarily unavailable", True),
        ("OMP: Error #34: System unable to allocate necessary resources for OMP thread:", True),
        ("bash: fork: retry: Resource temporarily unavailable", True),
        ("BlockingIOError: [Errno 11] Resource temporarily unavailable", False),
        ("pthread_create was called 4 times", False),
    ],
)
def test_texts_of_threads_that_run_out(text: str, *, is_out: bool) -> None:
    assert thread_limits.out_of_threads_text(text) is is_out
