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
from harness.sensitivity.python_calls import Calls

PLAN_VARIABLE = "XLA_HARNESS_FAULT_PLAN"
PROGRESS = "XLA_HARNESS_FAULT_PROGRESS"  # names a file that grows by a byte with each case
_SEPARATOR = "~"
_WHERE_JAX_COMPILES = ("cpu", "pjrt")  # lanes whose plugin, if they have one, plants nothing itself
_CALLS = pytest.StashKey[Calls]()
_PID = os.getpid()  # of the process that forks


@dataclass(frozen=True)
class SessionPlan:
    """Instructions for one session.

    Attributes:
        folder: holds the programs.
        faults: to plant, each with the deadline of its case in seconds. Without faults, programs
            are recorded.
        until: no case begins after this time, in seconds since 1970.
        compare: compare the programs in the case's process, and plant nothing.
    """

    folder: Path
    faults: tuple[tuple[Fault, float], ...] = ()
    until: float = float("inf")
    compare: bool = False

    def write(self, path: Path) -> None:
        """Write the file that ``read`` parses."""
        faults = [[vars(fault), deadline] for fault, deadline in self.faults]
        data = vars(self) | {"folder": str(self.folder), "faults": faults}
        path.write_text(json.dumps(data))

    @classmethod
    def read(cls, path: Path) -> SessionPlan:
        """Return the plan that ``write`` has written."""
        data = json.loads(path.read_text())
        faults = tuple((Fault(**fault), deadline) for fault, deadline in data["faults"])
        return cls(**data | {"folder": Path(data["folder"]), "faults": faults})


def number_of(key: str) -> int:
    """Return the number of the fault with which a case ran, from the case's id."""
    return int(key.rpartition(_SEPARATOR)[2].partition(" ")[0])


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Forget which cases were chosen once the faults decide it: their ids are other ones then."""
    if SessionPlan.read(Path(os.environ[PLAN_VARIABLE])).faults:
        for name in ("cases", "unless_cases", "quick", "shard"):
            setattr(config.option, name, None)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Have each case record its programs, or replace it by a copy for each of its faults."""
    plan = SessionPlan.read(Path(os.environ[PLAN_VARIABLE]))
    if not plan.faults:
        for item in items:
            file = case_file(plan.folder, item.nodeid)
            where = {RECORD_VARIABLE: str(file), SUBMITTED_VARIABLE: str(submitted_file(file))}
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
    """Leaves out cases after the budget ends. Registered last, it runs before a case is forked."""

    def __init__(self, until: float) -> None:
        self._until = until

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self) -> bool | None:
        """Claim that an item has been run if it is too late for it."""
        return True if os.getpid() == _PID and time.time() > self._until else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    """Attach to the compilers in the case's own process, before any fixture.

    For faults in Python, change a function of a framework, or start to trace functions.
    """
    if os.getpid() != _PID:
        _attach(item)
        fault = json.loads(os.environ.get(FAULT_VARIABLE, "{}"))
        if in_python(fault.get("program", "")):
            events.write("plant", {}, stage="given")
            if python_faults.plant(fault["program"], fault["operator"], fault["place"]):
                events.write("plant", {}, stage="taken")
                events.write("plant", {}, stage="executed")
        elif paths := os.environ.get(PYTHON_VARIABLE):
            file = python_file(Path(os.environ[RECORD_VARIABLE]))
            item.stash[_CALLS] = Calls(tuple(paths.split(":")), file)
            item.stash[_CALLS].start()
    yield


def _attach(item: pytest.Item) -> None:
    """Attach to the compilers that use no plugin; without JAX there are none."""
    if "jax" not in sys.modules or os.environ.get(PYTHON_VARIABLE):
        return
    from harness.sensitivity import compilers

    compilers.attach_to_exported()
    if item.config.getoption("lane") in _WHERE_JAX_COMPILES:
        compilers.attach_to_jax()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """Stop tracing what the case executes."""
    yield
    if (calls := item.stash.get(_CALLS, None)) is not None:
        calls.stop()


def pytest_runtest_logfinish() -> None:
    """Count the case once: in the controller of pytest-xdist, which hears of all cases."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        with Path(os.environ[PROGRESS]).open("ab", buffering=0) as file:
            file.write(b".")


def _with_fault(item: pytest.Item, fault: Fault, deadline: float, plan: SessionPlan) -> pytest.Item:
    """Return a copy of the test with another id, and with the fault in its environment.

    The name stays the same, as unittest looks tests up by name.
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
