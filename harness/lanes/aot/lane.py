"""Lane ``tpu-aot``: programs that frameworks make on a virtual TPU, compiled by libtpu."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

from harness.lanes.aot import libtpu
from harness.lanes.aot.compilation_record import EVENT, LEFT, REFUSED, facts
from harness.lanes.events import Events
from harness.lanes.virtual.callbacks import STAND_IN_VARIABLE
from harness.lanes.virtual.kept_programs import VARIABLE as KEPT_VARIABLE
from harness.lanes.virtual.lane import VirtualLane
from harness.model.topology import Topology
from harness.platforms.tpu.libtpu_file import library


class TpuAotLane(VirtualLane):
    """A virtual TPU that frameworks trace or run on, and libtpu's compiler for its topology."""

    compiles_only = True
    needs = ("libtpu", "jaxlib")
    default_topology = Topology.parse("2xv6e:2x2")

    def __init__(self) -> None:
        super().__init__()
        self.name = "tpu-aot"

    def check(self, topology: Topology) -> None:
        libtpu.check(topology)
        super().check(topology)

    def missing(self) -> str:
        if not library():
            return "libtpu is not installed"
        return "" if find_spec("jaxlib") else "jaxlib is not installed, which hands libtpu programs"

    def preload(self) -> None:
        from harness.lanes.aot import tpu_compiler  # noqa: F401 - once for all cases

        super().preload()
        libtpu.preload()

    def environment(self, topology: Topology) -> Mapping[str, str | None]:
        own = {STAND_IN_VARIABLE: "1", KEPT_VARIABLE: None}
        return {**libtpu.ENVIRONMENT, **super().environment(topology), **own}

    def unproven(self, process: Events, case: Events) -> str:
        if left := {process for e in case.of(LEFT) for process in e.facts["processes"]}:
            return f"what {len(left)} of its processes submitted was not compiled with libtpu"
        # A test may run what an earlier one of its process has submitted.
        compiled = process.of(EVENT) or case.of(EVENT) or case.of(REFUSED)
        return "" if compiled else "it compiled nothing with libtpu"

    def facts(self, events: Events) -> Mapping[str, str]:
        return facts(events)
