"""The lanes a case can run on. A new lane is one module here and one entry in ``LANES``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from harness.errors import BadInputError
from harness.lanes.cpu import CpuLane
from harness.topology import Topology


class Lane(Protocol):
    """How one kind of device is set up; only ``start`` needs torch_xla and starts anything."""

    name: str
    default_topology: Topology

    def environment(self, topology: Topology) -> Mapping[str, str]:
        """What must stand in the environment before the runtime starts."""

    def prepare(self, topology: Topology) -> None:
        """Set in this process what the environment no longer reaches; starts nothing."""

    def start(self, topology: Topology, *, spmd: bool) -> None:
        """Start the runtime in this process; raises RuntimeError if it is not the topology's."""


LANES: Mapping[str, Lane] = {lane.name: lane for lane in (CpuLane(),)}


def lane_named(name: str) -> Lane:
    """The lane of that name; raises BadInputError with the names there are."""
    try:
        return LANES[name]
    except KeyError:
        raise BadInputError(f"lane {name!r}: expected one of {', '.join(LANES)}") from None
