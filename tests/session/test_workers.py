"""Workers that nobody asked for on the command line: ini xla_workers."""

from __future__ import annotations

import os

import pytest
from support.project import Project

CORES = len(os.sched_getaffinity(0))
TESTS = """\
@pytest.fixture(autouse=True)
def count():
    with open("workers", "a") as file:
        file.write(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0") + "\\n")
def test_a(): pass
def test_b(): pass
"""
FAILS = "def test_x():\n    here = 41\n    assert not here\n"


def ini(project: Project, workers: str) -> None:
    (project.path / "pytest.ini").write_text(f"[pytest]\nxla_preload =\nxla_workers = {workers}\n")


@pytest.mark.parametrize(
    ("setting", "options", "expected"),
    [
        ("", "", 0),
        ("cores", "", CORES),
        ("3", "test_inner.py", 3),
        ("3", "-n1", 1),
        ("3", "-n0", 0),
        ("3", "-p no:xdist", 0),
        ("3", "-s", 0),
        ("3", "test_inner.py::test_a test_inner.py::test_b", 0),
        ("3", "-o xla_workers=2", 2),
    ],
)
def test_workers(project: Project, setting: str, options: str, expected: int) -> None:
    ini(project, setting)
    project.write("test_inner.py", TESTS)
    assert project.run(*options.split()).code == 0
    assert set((project.path / "workers").read_text().split()) == {str(expected)}


def test_a_wrong_setting(project: Project) -> None:
    ini(project, "core")
    ran = project.run()
    assert ran.code == 2
    assert ran.shows("xla-harness: ini xla_workers: 'core': expected cores or a number")


def test_pdb_has_the_terminal(project: Project) -> None:
    ini(project, "3")
    project.write("test_inner.py", FAILS)
    assert project.run("--pdb", typed="p 'local', here + 1\nq\n").shows("('local', 42)")


def test_trace_has_the_terminal(project: Project) -> None:
    ini(project, "3")
    project.write("test_inner.py", FAILS)
    assert project.run("--trace", typed="n\np 'local', here + 1\nq\n").shows("('local', 42)")


def test_a_breakpoint_has_the_terminal(project: Project) -> None:
    ini(project, "3")
    project.write("test_inner.py", "def test_x():\n    here = 41\n    breakpoint()\n    del here\n")
    ran = project.run(typed="p 'local', here + 1\nc\n", PYTHONBREAKPOINT="pdb.set_trace")
    assert ran.shows("('local', 42)")


def test_coverage_of_workers_is_measured(project: Project) -> None:
    """pytest-cov reads the command line before any run starts."""
    ini(project, "2")
    project.write("mine.py", "def here():\n    return 1\n")
    project.write("test_inner.py", "import mine\ndef test_a(): mine.here()\ndef test_b(): pass\n")
    ran = project.run("-p", "pytest_cov", "--cov=mine", PYTHONPATH=str(project.path))
    assert ran.shows("mine.py 5 0 100%"), ran.stdout
