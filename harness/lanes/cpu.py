"""Lane ``cpu``: PJRT's own CPU client with as many virtual devices as the topology has."""

from __future__ import annotations

from collections.abc import Mapping

from harness import frameworks
from harness.errors import BadInputError
from harness.lanes.events import Events
from harness.lanes.lane_protocol import Lane
from harness.model.topology import Topology


class CpuLane(Lane):
    """The frameworks' CPU clients, side by side in one process."""

    name = "cpu"
    counts_events = False  # nothing counts what is asked of PJRT's own CPU client
    compiles_only = False
    runs_cases_of = ""
    needs = ()
    default_topology = Topology(1, 4)

    def check(self, topology: Topology) -> None:
        if topology.generation:
            raise BadInputError(f"topology {topology}: lane cpu has no generations")
        if topology.processes:
            raise BadInputError(f"topology {topology}: lane cpu has all devices in one process")

    def missing(self) -> str:
        return ""

    def preload(self) -> None:
        """Everything is in the frameworks themselves."""

    def environment(self, topology: Topology) -> Mapping[str, str | None]:
        return frameworks.environment("cpu", topology.total)

    def prepare(self, topology: Topology) -> None:
        frameworks.prepare("cpu", topology.total)

    def unproven(self, process: Events, case: Events) -> str:
        del process, case
        return ""

    def facts(self, events: Events) -> Mapping[str, str]:
        """Return the planted faults; PJRT's own CPU client counts nothing."""
        return events.planted
