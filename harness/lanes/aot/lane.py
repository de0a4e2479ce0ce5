"""Lanes ``tpu-aot``, ``gpu-aot``: programs that frameworks make on virtual devices, compiled."""

from __future__ import annotations

from collections.abc import Mapping

from harness.errors import BadInputError
from harness.lanes.aot.compilation_record import EVENT, LEFT, REFUSED, facts
from harness.lanes.aot.vendor import vendor_of
from harness.lanes.events import Events
from harness.lanes.virtual.callbacks import STAND_IN_VARIABLE
from harness.lanes.virtual.kept_programs import VARIABLE as KEPT_VARIABLE
from harness.lanes.virtual.lane import VirtualLane
from harness.model.topology import Topology
from harness.platforms import Platform
from harness.platforms.tpu import TPU

_MOST_RUN = 256  # devices; of more, each program is a stand-in


class AotLane(VirtualLane):
    """Virtual devices that frameworks trace or run on, and the vendor's compiler for them."""

    compiles_only = True

    def __init__(self, platform: Platform = TPU) -> None:
        super().__init__(platform)
        self.name = f"{platform.name}-aot"
        self.vendor = vendor_of(platform)
        self.needs = self.vendor.NEEDS
        self.default_topology = Topology.parse(self.vendor.DEFAULT)

    def check(self, topology: Topology) -> None:
        if not topology.generation:
            raise BadInputError(
                f"topology {topology}: lane {self.name} compiles for a generation: expected it in "
                f"front of the size, as {self.default_topology.slice} or {self.default_topology}"
            )
        super().check(topology)
        self.vendor.check(topology)

    def missing(self) -> str:
        return super().missing() or self.vendor.missing()

    def preload(self) -> None:
        from harness.lanes.aot import case_compiler  # noqa: F401 - once for all cases

        super().preload()
        self.vendor.preload()

    def environment(self, topology: Topology) -> Mapping[str, str | None]:
        stands_in = "1" if topology.total <= _MOST_RUN else "all"
        own = {STAND_IN_VARIABLE: stands_in, KEPT_VARIABLE: None}
        return {**self.vendor.ENVIRONMENT, **super().environment(topology), **own}

    def unproven(self, process: Events, case: Events) -> str:
        if left := {process for e in case.of(LEFT) for process in e.facts["processes"]}:
            submitted = f"what {len(left)} of its processes submitted"
            return f"{submitted} was not compiled with {self.vendor.NAME}"
        # A test may run what an earlier one of its process has submitted.
        compiled = process.of(EVENT) or case.of(EVENT) or case.of(REFUSED)
        return "" if compiled else f"it compiled nothing with {self.vendor.NAME}"

    def facts(self, events: Events) -> Mapping[str, str]:
        return facts(events)
