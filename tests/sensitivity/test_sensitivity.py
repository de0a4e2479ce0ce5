"""``xla-harness sensitivity`` on a JAX user's own tests: which planted faults they see.

All run for real: the tests on the virtual TPU, each fault compiled and executed there, and what was
not seen compared by jaxlib's own client.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from support.processes import assert_gone
from support.sensitivity import JAX_ALONE, Ran, sensitivity

from harness.sensitivity.answers import ANSWERS
from harness.sensitivity.operators import OPERATORS

pytestmark = pytest.mark.measures_coverage
TESTS = (Path(__file__).parent / "user_tests.py").read_text()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("user")
    (path / "test_user.py").write_text(TESTS)
    (path / "pytest.ini").write_text(f"[pytest]\n{JAX_ALONE[-1]}\n")
    return path


@pytest.fixture(scope="module")
def ran(folder: Path) -> Ran:
    """The whole command once, with a limit that one area does not reach."""
    options = ("test_user.py", "--json=s.json", "--budget=14m", "--fail-under=99", "-n2")
    ran = sensitivity(folder, *options, behind=["--topology=4"])
    assert ran.code in (0, 1), ran.stderr
    return ran


@pytest.fixture(scope="module")
def report(ran: Ran, folder: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((folder / "s.json").read_text())
    return data


def faults(report: dict[str, Any], verdict: str) -> list[dict[str, Any]]:
    return [fault for fault in report["faults"] if fault["verdict"] == verdict]


@pytest.mark.long
def test_every_operator_is_seen(report: dict[str, Any]) -> None:
    seen = {fault["operator"] for fault in faults(report, "seen")}
    assert seen - set(ANSWERS) == {*OPERATORS, "stale-program"}


@pytest.mark.long
def test_tests_that_compare_numbers_see_all(report: dict[str, Any]) -> None:
    blind = defaultdict(list)
    for fault in faults(report, "not seen"):
        blind[fault["case"].partition("::")[2]].append(fault["operator"])
    assert set(blind) == {"test_that_looks_at_nothing", "test_of_the_sign_alone"}, dict(blind)


def test_what_was_not_seen_is_shown(report: dict[str, Any], ran: Ran) -> None:
    (fault,) = (
        fault
        for fault in faults(report, "not seen")
        if fault["case"].endswith("nothing") and fault["operator"] == "operands-swapped"
    )
    assert fault["told"] == "other results"
    removed, added = (line for line in fault["difference"] if "subtract(" in line)
    assert removed[0] == "-"
    assert added[0] == "+"
    (was,), (now,) = (re.findall(r"subtract\((.*?), (.*?)\)", line) for line in (removed, added))
    assert was == now[::-1]
    assert "operands-swapped at subtract of" in ran.stdout
    assert "test_user.py::test_that_looks_at_nothing" in ran.stdout


def test_what_changes_nothing_is_not_counted(report: dict[str, Any]) -> None:
    same = {
        (fault["case"].partition("::")[2], fault["operator"])
        for fault in faults(report, "equivalent")
        if fault["operator"] not in ANSWERS
    }
    assert ("test_whose_mask_means_nothing", "comparison-changed") in same
    assert not any(case == "test_that_looks_at_nothing" for case, _ in same)


def test_cases_that_could_not_be_asked(report: dict[str, Any], ran: Ran) -> None:
    assert report["red"] == {"test_user.py::test_that_fails": "failed"}
    assert "test_user.py::test_without_a_program" in report["idle"]
    with_faults = {fault["case"] for fault in report["faults"]}
    assert with_faults.isdisjoint({*report["red"], *report["idle"]})
    assert "1  cases that fail without a fault: nothing is planted in them" in ran.stdout


def test_the_share_and_the_exit_code(report: dict[str, Any], ran: Ran) -> None:
    area = report["areas"]["test_user.py"]
    seen, unseen = len(faults(report, "seen")), len(faults(report, "not seen"))
    assert (area["seen"], area["not seen"]) == (seen, unseen)
    assert area["percent"] == round(100 * seen / (seen + unseen), 1) < 99
    assert ran.code == 1
    assert "less than 99 % of the faults were seen in test_user.py" in ran.stderr


def test_cases_that_add_nothing(report: dict[str, Any]) -> None:
    assert "test_user.py::test_that_looks_at_nothing" in report["adds_nothing"]
    assert set(report["smallest"]).isdisjoint(report["adds_nothing"])


def test_lines_fit_a_terminal(ran: Ran) -> None:
    assert [line for line in ran.stdout.splitlines() if len(line) > 80] == []


PACKAGE = """
class Scale:
    def __init__(self, factor):
        self.factor = factor

    def apply(self, x):
        if self.factor < 0:
            return x - self.factor
        note("applied")
        return x * self.factor + bias(x.ndim, scale=2)

    @staticmethod
    def of(x, y):
        return combined(x, y)


def bias(rank, scale=1):
    return rank * scale


def combined(x, y):
    def inner():
        return x - y
    return inner()


def note(text):
    NOTES.append(text)


NOTES = []


def double(x):
    return x + x
"""
USER = """
import os
import jax.numpy as jnp
import slips

def test_in_a_process_of_its_own():
    if not (pid := os.fork()):
        os._exit(slips.double(2) or 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 4
    jnp.ones(2).block_until_ready()

def test_scale():
    assert slips.Scale(3).apply(jnp.ones(2)).tolist() == [5, 5]

def test_combined():
    assert slips.Scale.of(jnp.ones(2), 2).tolist() == [-1, -1]
"""


@pytest.fixture(scope="module")
def slips(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """The faults of a package's Python, by the function and the operator."""
    folder = tmp_path_factory.mktemp("slips")
    (folder / "slips").mkdir()
    (folder / "slips" / "__init__.py").write_text(PACKAGE)
    (folder / "test_slips.py").write_text(USER)
    options = ("test_slips.py", "--python=slips", "--json", "--budget=14m", "-n2")
    ran = sensitivity(folder, *options, behind=["--topology=1", *JAX_ALONE])
    assert ran.code == 0, ran.stderr
    by_place = defaultdict(list)
    for fault in json.loads(ran.stdout)["faults"]:
        by_place[fault["program"].split(":")[1], fault["operator"]].append(fault)
    return by_place


@pytest.mark.parametrize(
    ("function", "operator", "verdicts"),
    [
        ("Scale.apply", "python-condition", ["seen"]),
        ("Scale.apply", "python-arithmetic", ["seen", "seen"]),  # of the line that is executed
        ("Scale.apply", "python-argument-left-out", ["seen"]),
        ("Scale.apply", "python-call-left-out", ["not seen"]),
        ("Scale.apply", "python-comparison", ["not seen"]),  # the factor is no 0
        ("Scale.of", "python-arguments-swapped", ["seen"]),
        ("bias", "python-result-left-out", ["seen"]),
        ("note", "python-call-left-out", ["not seen"]),
        ("double", "python-result-left-out", ["seen"]),  # of a process that the test forks
    ],
)
def test_slips_in_python(
    slips: dict[tuple[str, str], list[dict[str, Any]]],
    function: str,
    operator: str,
    verdicts: list[str],
) -> None:
    assert [fault["verdict"] for fault in slips[function, operator]] == verdicts


def test_the_slip_is_shown(slips: dict[tuple[str, str], list[dict[str, Any]]]) -> None:
    (fault,) = slips["Scale.apply", "python-comparison"]
    assert fault["difference"] == ["-    if self.factor < 0:", "+    if self.factor <= 0:"]
    assert fault["opcode"] == "line 7"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["test_user.py", "--python=nowhere"], "--python 'nowhere': expected an installed package"),
        (["test_user.py", "--operators=loss"], "--operators 'loss': expected some of collective-"),
        (["test_user.py", "--budget=soon"], "--budget 'soon': expected seconds, minutes or hours"),
        (["test_user.py", "--lane=tpu"], "--lane 'tpu': expected one of virtual-tpu, cpu"),
        (["nowhere.py"], "nowhere.py: expected a file or folder of tests"),
        (["test_user.py", "--folder=."], "--folder .: expected an empty folder, or one of this"),
        (
            ["test_idle.py"],
            "test_idle.py: no case passes on lane virtual-tpu and has a place for a",
        ),
        (["test_broken.py"], "ended with 2"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_bad_input(folder: Path, options: list[str], message: str) -> None:
    (folder / "test_idle.py").write_text("def test_idle(): pass\n")
    (folder / "test_broken.py").write_text("import no_such_module\n")
    ran = sensitivity(folder, *options, "-n1")
    assert message in ran.stderr
    assert ran.code == 2


SLEEPS = """
import os, time
from pathlib import Path

def test_sleeps():
    Path("pids.part").write_text(f"{os.getpid()} {os.getppid()}")
    Path("pids.part").rename("pids")
    time.sleep(600)
"""


def test_a_command_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "test_user.py").write_text(SLEEPS)
    command = [sys.executable, "-m", "harness", "sensitivity", "test_user.py", "-n", "1"]
    command += ["--", *JAX_ALONE]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) as process:
        try:
            while not (tmp_path / "pids").exists():
                assert process.poll() is None
                time.sleep(0.05)
        finally:
            process.kill()
    assert_gone([int(pid) for pid in (tmp_path / "pids").read_text().split()])
