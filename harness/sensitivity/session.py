"""A pytest plugin: runs cases while their programs are kept, or once for each planned fault."""

from __future__ import annotations

import copy
import json
import os
import sys
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.isolation.foreign import set_id
from harness.lanes import events
from harness.sensitivity import planting, python_faults  # noqa: F401 - before cases are forked
from harness.sensitivity.answers import WRONG_ANSWER
from harness.sensitivity.fault import (
    COMPARE_VARIABLE,
    FAULT_VARIABLE,
    PLUGIN,
    PYTHON_VARIABLE,
    RECORD_VARIABLE,
    SUBMITTED_VARIABLE,
    Fault,
    case_file,
    compared_file,
    in_python,
    python_file,
    submitted_file,
)

PLAN_VARIABLE = "XLA_HARNESS_FAULT_PLAN"
PROGRESS = "XLA_HARNESS_FAULT_PROGRESS"  # names a file that grows by a byte with each case
_SEPARATOR = "~"
_CALLS = pytest.StashKey[python_faults.Calls]()
_PID = os.getpid()  # of the process that forks


@dataclass(frozen=True)
class Plan:
    """What a session does.

    Attributes:
        folder: of the programs.
        faults: to plant, each with the deadline of its case in seconds. Without any, programs are
            kept.
        until: the time at which no further case begins, in seconds since 1970.
        compare: whether the programs are compared in the case's process, and nothing is planted.
    """

    folder: Path
    faults: tuple[tuple[Fault, float], ...] = ()
    until: float = float("inf")
    compare: bool = False

    def write(self, path: Path) -> None:
        """As ``read`` takes it."""
        faults = [[vars(fault), deadline] for fault, deadline in self.faults]
        told = vars(self) | {"folder": str(self.folder), "faults": faults}
        path.write_text(json.dumps(told))

    @classmethod
    def read(cls, path: Path) -> Plan:
        """What ``write`` has written."""
        told = json.loads(path.read_text())
        faults = tuple((Fault(**fault), deadline) for fault, deadline in told["faults"])
        return cls(**told | {"folder": Path(told["folder"]), "faults": faults})


def number_of(key: str) -> int:
    """The fault that a case of such a session ran with, by its id."""
    return int(key.rpartition(_SEPARATOR)[2].partition(" ")[0])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Have each case keep its programs, or be there once for each of its faults."""
    plan = Plan.read(Path(os.environ[PLAN_VARIABLE]))
    if not plan.faults:
        for item in items:
            said = case_file(plan.folder, item.nodeid)
            where = {RECORD_VARIABLE: str(said), SUBMITTED_VARIABLE: str(submitted_file(said))}
            item.add_marker(pytest.mark.environment(**where))
        return
    config.pluginmanager.register(_Budget(plan.until))
    by_id = {item.nodeid: item for item in items}
    items[:] = [
        _with_fault(by_id[fault.case], fault, deadline, plan)
        for fault, deadline in plan.faults
        if fault.case in by_id
    ]


class _Budget:
    """Leaves out what comes after its end. Registered last, it is asked before a case is forked."""

    def __init__(self, until: float) -> None:
        self._until = until

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self) -> bool | None:
        """Say that an item has been run when it is too late for it."""
        return True if os.getpid() == _PID and time.time() > self._until else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    """In the case's own process, before any fixture: be where programs are compiled.

    Or change a function of a framework, or begin to note them.
    """
    if os.getpid() != _PID:
        _attach(item)
        fault = json.loads(os.environ.get(FAULT_VARIABLE, "{}"))
        if in_python(fault.get("program", "")):
            events.write("plant", {}, stage="given")
            if python_faults.plant(fault["program"], fault["operator"], fault["place"]):
                events.write("plant", {}, stage="taken")
                events.write("plant", {}, stage="executed")
        elif folders := os.environ.get(PYTHON_VARIABLE):
            said = python_file(Path(os.environ[RECORD_VARIABLE]))
            item.stash[_CALLS] = python_faults.Calls(tuple(folders.split(":")), said)
            item.stash[_CALLS].start()
    yield


def _attach(item: pytest.Item) -> None:
    """Plant in what no plugin compiles; without JAX there is nothing."""
    if "jax" not in sys.modules or os.environ.get(PYTHON_VARIABLE):
        return
    from harness.sensitivity import compilers

    compilers.attach_to_exported()
    if item.config.getoption("lane") == "cpu":
        compilers.attach_to_jax()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """Note no more of what it executes."""
    yield
    if (calls := item.stash.get(_CALLS, None)) is not None:
        calls.stop()


def pytest_runtest_logfinish() -> None:
    """Count it, once; the controller of pytest-xdist is told of all."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        with Path(os.environ[PROGRESS]).open("ab", buffering=0) as file:
            file.write(b".")


def _with_fault(item: pytest.Item, fault: Fault, deadline: float, plan: Plan) -> pytest.Item:
    """The same test once more, with another id and the fault in its environment.

    Its name stays: unittest's tests are looked up by it.
    """
    other = copy.copy(item)
    set_id(other, f"{item.nodeid}{_SEPARATOR}{fault.number}")
    other.stash = pytest.Stash()
    other.own_markers = list(item.own_markers)
    if isinstance(other, pytest.Function):
        other._initrequest()
    planted = {FAULT_VARIABLE: fault.text(plan.folder)}
    if plan.compare:
        planted[COMPARE_VARIABLE] = str(compared_file(plan.folder, fault))
    if fault.program == PLUGIN:
        planted[WRONG_ANSWER] = fault.operator
        planted[SUBMITTED_VARIABLE] = str(submitted_file(plan.folder / fault.file))
    other.add_marker(pytest.mark.environment(**planted))
    other.add_marker(pytest.mark.deadline(deadline), append=False)
    return other
