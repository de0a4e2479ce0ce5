"""The pytest fixtures that a case asks for."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

from harness import frameworks
from harness.expectations import Expectation
from harness.frameworks import FRAMEWORKS
from harness.isolation.pytest_child import RUNTIME_START, current_phase
from harness.junit.properties import HOST_CALLS
from harness.lanes import LANES, platform_of
from harness.lanes.events import VARIABLE, EventLog
from harness.model.case import Case
from harness.model.host_work import HostWork
from harness.model.topology import Target, Topology

if TYPE_CHECKING:
    from harness.lanes.aot.case_compiler import CaseCompiler
    from harness.lanes.aot.golden import Golden

CASE = pytest.StashKey[Case]()
EXPECTATION = pytest.StashKey[Expectation | None]()
DEFAULT_FRAMEWORK = "torch_xla"  # of a case without the marker ``frameworks``
GOLDEN: pytest.StashKey[Golden | None] = pytest.StashKey()


class StartRuntime(Protocol):
    """Function that the fixture ``start_runtime`` returns."""

    def __call__(self, *, spmd: bool) -> None:
        """Start under SPMD, or without it with one device for each replica.

        Raises RuntimeError unless the runtime has the topology's devices.
        """


@pytest.fixture
def xla_target(request: pytest.FixtureRequest) -> Target:
    """Return the lane and topology that the case runs on."""
    case: Case | None = request.node.stash.get(CASE, None)
    if case is None:
        pytest.fail("not a case: mark it with lanes(...), or run it with --lane", pytrace=False)
    return case.target


@pytest.fixture
def topology(xla_target: Target) -> Topology:
    """Return the topology that the case runs on."""
    return xla_target.topology


@pytest.fixture
def start_runtime(request: pytest.FixtureRequest, xla_target: Target) -> StartRuntime:
    """Return a function that starts the case's framework with all devices of the topology.

    A case without ``frameworks`` starts torch_xla, and is skipped where it is missing. The case
    decides when to start: an oracle that forks processes has to run before.
    """

    def start(*, spmd: bool) -> None:
        name = xla_target.framework or DEFAULT_FRAMEWORK
        if missing := frameworks.missing(name, platform_of(LANES[xla_target.lane])):
            pytest.skip(missing)
        began = time.perf_counter()
        FRAMEWORKS[name].start(xla_target.topology.total, spmd=spmd)
        seconds = request.node.stash.setdefault(RUNTIME_START, {})
        phase = current_phase()
        seconds[phase] = seconds.get(phase, 0.0) + time.perf_counter() - began

    return start


@pytest.fixture
def tpu_events(xla_target: Target) -> EventLog:
    """Return the log of what frameworks request from the virtual TPU from here on."""
    if not LANES[xla_target.lane].counts_events:
        pytest.fail(f"tpu_events: lane {xla_target.lane} counts nothing", pytrace=False)
    return EventLog(Path(os.environ[VARIABLE]))


@pytest.fixture
def host_work(request: pytest.FixtureRequest) -> HostWork:
    """Count what a step costs the host, as ``host_calls_STEP`` of the case in its report."""
    # Not record_property, which warns where JUnit has the family xunit2.
    properties = request.node.user_properties
    return HostWork(lambda step, calls: properties.append((f"{HOST_CALLS}{step}", calls)))


@pytest.fixture
def xla_compiler(request: pytest.FixtureRequest, xla_target: Target) -> CaseCompiler:
    """Return the compiler for the topology that the case is compiled for."""
    if not LANES[xla_target.lane].compiles_only:
        pytest.fail(f"xla_compiler: lane {xla_target.lane} compiles for no device", pytrace=False)
    from harness.lanes.aot.case_compiler import CaseCompiler

    return CaseCompiler(request.node.stash[CASE], request.config.stash[GOLDEN])
