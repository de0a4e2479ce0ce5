"""The pytest fixtures that a case asks for."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from harness.frameworks import FRAMEWORKS
from harness.isolation.pytest_child import RUNTIME_START
from harness.lanes import LANES
from harness.lanes.events import VARIABLE, EventLog
from harness.lanes.tpu_aot.golden import Golden
from harness.lanes.tpu_aot.tpu_compiler import TpuCompiler
from harness.model.case import Case
from harness.model.topology import Target, Topology

CASE = pytest.StashKey[Case]()
GOLDEN = pytest.StashKey[Golden | None]()


@pytest.fixture
def xla_target(request: pytest.FixtureRequest) -> Target:
    """The lane and topology that the case runs on."""
    case: Case | None = request.node.stash.get(CASE, None)
    if case is None:
        pytest.fail("not a case: mark it with lanes(...), or run it with --lane", pytrace=False)
    return case.target


@pytest.fixture
def topology(xla_target: Target) -> Topology:
    """The topology that the case runs on."""
    return xla_target.topology


@pytest.fixture
def spmd(request: pytest.FixtureRequest, xla_target: Target) -> None:
    """torch_xla's runtime, started in SPMD mode with all devices of the topology."""
    _start(request, xla_target, spmd=True)


@pytest.fixture
def replica(request: pytest.FixtureRequest, xla_target: Target) -> None:
    """torch_xla's runtime, started without SPMD: one device a replica."""
    _start(request, xla_target, spmd=False)


@pytest.fixture
def tpu_events(xla_target: Target) -> EventLog:
    """What torch_xla and JAX ask of the virtual TPU from here on: clients, compilations, ..."""
    if not LANES[xla_target.lane].counts_events:
        pytest.fail(f"tpu_events: lane {xla_target.lane} counts nothing", pytrace=False)
    return EventLog(Path(os.environ[VARIABLE]))


@pytest.fixture
def tpu_compiler(request: pytest.FixtureRequest, xla_target: Target) -> TpuCompiler:
    """The compiler of libtpu for the topology that the case runs on."""
    if not LANES[xla_target.lane].compiles_only:
        pytest.fail(f"tpu_compiler: lane {xla_target.lane} compiles for no TPU", pytrace=False)
    return TpuCompiler(request.node.stash[CASE], request.config.stash[GOLDEN])


def _start(request: pytest.FixtureRequest, target: Target, *, spmd: bool) -> None:
    start = time.perf_counter()
    FRAMEWORKS["torch_xla"].start(target.topology.total, spmd=spmd)
    request.node.stash[RUNTIME_START] = time.perf_counter() - start
