"""A pytest plugin: runs cases while their programs are kept, or once for each planned fault."""

from __future__ import annotations

import copy
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.isolation.foreign import set_id
from harness.sensitivity import planting  # noqa: F401 - before cases are forked
from harness.sensitivity.fault import FAULT_VARIABLE, RECORD_VARIABLE, Fault, case_file

PLAN_VARIABLE = "XLA_HARNESS_FAULT_PLAN"
PROGRESS = "XLA_HARNESS_FAULT_PROGRESS"  # names a file that grows by a byte with each case
_SEPARATOR = "~"
_UNTIL = pytest.StashKey[float]()


@dataclass(frozen=True)
class Plan:
    """What a session does.

    Attributes:
        folder: of the programs.
        faults: to plant, each with the deadline of its case in seconds. Without any, programs are
            kept.
        until: the time at which no further case begins, in seconds since 1970.
    """

    folder: Path
    faults: tuple[tuple[Fault, float], ...] = ()
    until: float = float("inf")

    def write(self, path: Path) -> None:
        """As ``read`` takes it."""
        faults = [[vars(fault), deadline] for fault, deadline in self.faults]
        told = {"folder": str(self.folder), "faults": faults, "until": self.until}
        path.write_text(json.dumps(told))

    @classmethod
    def read(cls, path: Path) -> Plan:
        """What ``write`` has written."""
        told = json.loads(path.read_text())
        faults = tuple((Fault(**fault), deadline) for fault, deadline in told["faults"])
        return cls(Path(told["folder"]), faults, told["until"])


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
            item.add_marker(pytest.mark.environment(**{RECORD_VARIABLE: str(said)}))
        return
    config.stash[_UNTIL] = plan.until
    by_id = {item.nodeid: item for item in items}
    items[:] = [
        _with_fault(by_id[fault.case], fault, deadline, plan.folder)
        for fault, deadline in plan.faults
        if fault.case in by_id
    ]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Leave out what comes after the end of the budget."""
    return True if time.time() > item.config.stash.get(_UNTIL, float("inf")) else None


def pytest_runtest_logfinish() -> None:
    """Count it, once; the controller of pytest-xdist is told of all."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        with Path(os.environ[PROGRESS]).open("ab", buffering=0) as file:
            file.write(b".")


def _with_fault(item: pytest.Item, fault: Fault, deadline: float, folder: Path) -> pytest.Item:
    """The same test once more, with another id and the fault in its environment.

    Its name stays: unittest's tests are looked up by it.
    """
    other = copy.copy(item)
    set_id(other, f"{item.nodeid}{_SEPARATOR}{fault.number}")
    other.stash = pytest.Stash()
    other.own_markers = list(item.own_markers)
    if isinstance(other, pytest.Function):
        other._initrequest()
    planted = {FAULT_VARIABLE: fault.text(folder)}
    other.add_marker(pytest.mark.environment(**planted))
    other.add_marker(pytest.mark.deadline(deadline), append=False)
    return other
