"""Reports of two stacks, made by running one small suite twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from support.project import Project

from harness.diagnosis.cause import signature_of
from harness.junit.report import Report, read
from harness.junit.result import Result

SUITE = """\
from harness.model.mismatch import NumbersError
SIDE, AGAIN = os.environ["SIDE"], "AGAIN" in os.environ
pytestmark = [pytest.mark.lanes("cpu"), pytest.mark.upstream("pytorch/xla#1")]

def broken_on(*sides, text="sums differ"):
    assert SIDE not in sides, f"{text}: {len(SIDE)} at {id(SIDE):#x}"

def test_works(): pass
@pytest.mark.parametrize("n", range(3))
def test_regresses(n):
    if SIDE == "candidate": raise NumbersError(f"rank {n}: {len(SIDE)} at {id(SIDE):#x}")
@pytest.mark.upstream("pytorch/xla#2")
def test_regresses_as_expected(): broken_on("candidate")
def test_fixed_unexpectedly(): broken_on("base")
def test_still_failing(): broken_on("base", "candidate")
def test_breaks_earlier():
    if SIDE == "candidate": import no_such_module
    broken_on("base", text="signature")
def test_skipped_now():
    if SIDE == "candidate": pytest.skip("no such device")
def test_sometimes_breaks(): assert SIDE == "base" or AGAIN
def test_sometimes_broke(): assert SIDE == "candidate" or AGAIN
def test_always_flaky(): assert AGAIN
if SIDE == "base":
    def test_gone(): pass
else:
    def test_new(): pass
"""
OTHER = """\
if os.environ["SIDE"] == "candidate": import no_such_module
pytestmark = pytest.mark.lanes("cpu")
def test_file_gone(): pass
"""
TOPOLOGIES = """\
pytestmark = pytest.mark.lanes("cpu")
@pytest.mark.topologies(2, 4)
def test_placed(): pass
"""
EXPECTED = """\
[[expectation]]
cases = [
    "test_inner.py::test_regresses_as_expected[*]",
    "test_inner.py::test_fixed_unexpectedly[*]",
]
issue = "pytorch/xla#3"
reason = "known"
signature = "sums differ"
"""


def key(name: str, parameter: str = "") -> str:
    """The key of a case of SUITE."""
    return f"test_inner.py::test_{name}[cpu-4{parameter}]"


def run_both(project: Project) -> Callable[[str], Report]:
    """Run the suite as ``base``, ``candidate`` and ``again`` (the candidate's reruns)."""
    project.write("test_inner.py", SUITE)
    project.write("test_other.py", OTHER)
    project.write("test_placed.py", TOPOLOGIES)
    project.write("expected/area.toml", EXPECTED)
    project.run("--junitxml=base.xml", SIDE="base", XLA_HARNESS_STACK="old")
    project.run(
        "--junitxml=candidate.xml", "--expectations=expected", "--topology=4",
        "--continue-on-collection-errors", SIDE="candidate", XLA_HARNESS_STACK="new",
    )  # fmt: skip
    for side in ("base", "candidate"):
        flaky = ("-k", "sometimes or flaky", "test_inner.py")
        project.run(f"--junitxml={side}-again.xml", *flaky, SIDE=side, AGAIN="1")
    return lambda name: read(project.path / f"{name}.xml")


def only(report: Report, *keys: str) -> Report:
    """The report with these cases only."""
    return replace(report, results={key: report.results[key] for key in keys})


def result(name: str, **changes: object) -> Result:
    """A result that no run gave: hostile text, other stacks."""
    plain: dict[str, Any] = {"id": f"a.py::{name}[cpu-4]", "lane": "cpu", "topology": "4"}
    made = Result(**{**plain, "area": "a", "message": "no", **changes})
    broken = made.measured and not made.works
    return replace(made, signature=signature_of(made.id, made.message)) if broken else made


def report(*results: Result, stack: str = "", **versions: str) -> Report:
    """A report of such results."""
    by_key = {each.key: each for each in results}
    return Report(Path(f"{stack}.xml"), stack, versions, by_key, {})
