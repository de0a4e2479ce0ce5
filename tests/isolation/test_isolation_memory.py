"""Memory that runs out is named as such, whoever notices first."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.project import Project

CASES = """\
pytestmark = pytest.mark.lanes("cpu")

def test_eats():
    eaten = [bytearray(os.urandom(1 << 20)) for _ in range(600)]

def test_is_killed():
    os.kill(os.getpid(), 9)

def test_is_frugal():
    assert len(bytearray(1 << 20)) == 1 << 20
"""


@pytest.mark.parametrize(("limit", "outcome"), [("256", "failed"), ("0", "passed")])
def test_memory_limit(project: Project, limit: str, outcome: str) -> None:
    project.write("test_inner.py", CASES)
    ran = project.run("--memory-limit", limit, "-k", "eats or frugal")
    assert ran.outcomes == {"test_eats": outcome, "test_is_frugal": "passed"}
    detail = ran.properties("test_eats").get("outcome_detail", "")
    assert detail == ("out of memory: MemoryError" if outcome == "failed" else "")


@pytest.fixture
def memory_cgroup() -> Iterator[Path]:
    """A control group with 300 MiB of memory, of either version of control groups."""
    v1, v2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    root, limit = (v1, "memory.limit_in_bytes") if v1.is_dir() else (v2, "memory.max")
    folder = root / f"xla-harness-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / limit).write_text(str(300 << 20), encoding="ascii")
    except OSError as error:
        if folder.is_dir():
            folder.rmdir()
        pytest.skip(f"this machine lets nobody make a memory cgroup: {error}")
    yield folder
    folder.rmdir()


def test_a_kill_by_the_kernel_is_out_of_memory(project: Project, memory_cgroup: Path) -> None:
    project.write("test_inner.py", CASES)
    project.write(
        "conftest.py",
        f"Path({str(memory_cgroup / 'cgroup.procs')!r}).write_text(str(os.getpid()))",
    )
    ran = project.run("--memory-limit", "0")
    assert ran.outcomes == {
        "test_eats": "crashed",
        "test_is_killed": "crashed",
        "test_is_frugal": "passed",
    }
    assert ran.properties("test_eats")["outcome_detail"] == (
        "SIGKILL: out of memory: killed by the kernel at the cgroup's limit"
    )
    assert ran.properties("test_is_killed")["outcome_detail"] == "SIGKILL"
