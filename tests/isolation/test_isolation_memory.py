"""Memory that runs out is named as such, whoever notices first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.control_groups import control_group
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


DEVICES = """\
@pytest.mark.lanes("virtual-gpu")
@pytest.mark.topologies("128xh100:8")
def test_counts():
    import jax
    assert jax.device_count() == 1024
"""


def test_stacks_of_the_devices_threads_do_not_count(project: Project) -> None:
    project.write("test_inner.py", DEVICES)
    ran = project.run("--memory-limit=4096")
    assert list(ran.outcomes.values()) == ["passed"], ran.stdout


@pytest.fixture
def memory_cgroup() -> Iterator[Path]:
    """A control group with 300 MiB of memory."""
    limits = ("memory.limit_in_bytes", "memory.max")
    with control_group("memory", limits, 300 << 20) as folder:
        yield folder


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


MANY = """\
pytestmark = pytest.mark.lanes("cpu")
BLOCK = b"x" * (16 << 20)

def huge():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("AnonHugePages"))

@pytest.mark.parametrize("number", range(CASES))
def test_shares(number):
    Path(f"huge-{number}").write_text(str(huge()))
"""


@pytest.mark.parametrize(
    ("cases", "options", "gathered"),
    [(80, (), True), (20, (), False), (80, ("-n2",), False), (160, ("-n2",), True)],
)
def test_memory_is_gathered_in_huge_pages_for_many_cases(
    project: Project, cases: int, options: tuple[str, ...], *, gathered: bool
) -> None:
    if not Path("/sys/kernel/mm/transparent_hugepage").exists():
        pytest.skip("this kernel has no huge pages")
    project.write("test_inner.py", MANY.replace("CASES", str(cases)))
    ran = project.run(*options)
    assert set(ran.outcomes.values()) == {"passed"}
    pages = [int(file.read_text()) for file in project.path.glob("huge-*")]
    assert len(pages) == cases
    first = pages.count(0)  # whose results come before it is done, of each worker
    assert first == (5 * (2 if options else 1) if gathered else cases)
