"""Lane ``tpu-aot``: programs traced on a virtual TPU, compiled by libtpu and not executed."""

from __future__ import annotations

from collections.abc import Mapping

from harness.errors import BadInputError
from harness.lanes.events import Events
from harness.lanes.libtpu_file import library
from harness.lanes.tpu_aot import libtpu
from harness.lanes.tpu_aot.compilation_record import EVENT, REFUSED, facts
from harness.lanes.virtual_tpu.lane import VirtualTpuLane
from harness.model.topology import Topology


class TpuAotLane(VirtualTpuLane):
    """A virtual TPU that torch_xla and JAX trace on, and libtpu's compiler for its topology."""

    name = "tpu-aot"
    compiles_only = True
    needs = ("libtpu",)
    default_topology = Topology.parse("2xv6e:2x2")

    def check(self, topology: Topology) -> None:
        libtpu.check(topology)
        if topology.processes:
            raise BadInputError(f"topology {topology}: lane tpu-aot compiles in one process")

    def missing(self) -> str:
        return "" if library() else "libtpu is not installed"

    def preload(self) -> None:
        from harness.lanes.tpu_aot import tpu_compiler  # noqa: F401 - once for all cases

        super().preload()
        libtpu.preload()

    def environment(self, topology: Topology) -> Mapping[str, str | None]:
        return {**libtpu.ENVIRONMENT, **super().environment(topology)}

    def unproven(self, process: Events, case: Events) -> str:
        del process
        asked = case.of(EVENT) or case.of(REFUSED)
        return "" if asked else "it compiled nothing with libtpu"

    def facts(self, events: Events) -> Mapping[str, str]:
        return facts(events)
