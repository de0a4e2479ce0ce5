"""The lanes a case can run on. A new lane is one module here and one entry in ``LANES``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from harness.errors import BadInputError
from harness.lanes.cpu import CpuLane
from harness.lanes.events import Events
from harness.lanes.tpu import TpuLane
from harness.lanes.tpu_aot.lane import TpuAotLane
from harness.lanes.virtual_tpu.lane import VirtualTpuLane
from harness.model.topology import Topology


class Lane(Protocol):
    """How one kind of device is set up; only ``start`` needs torch_xla and starts anything."""

    name: str

    @property
    def default_topology(self) -> Topology:
        """Of a case that names the lane and no topology."""

    def check(self, topology: Topology) -> None:
        """Raise BadInputError if the lane can't have that topology."""

    def missing(self) -> str:
        """What the lane needs and this Python has not; "" if it can run."""

    def preload(self) -> None:
        """Load what every case of the lane needs, once, before the first is forked.

        Raises BadInputError when it is missing. Starts no thread: none would survive the fork.
        """

    def environment(self, topology: Topology) -> Mapping[str, str | None]:
        """What must stand in the environment before the runtime starts; None unsets."""

    def prepare(self, topology: Topology) -> None:
        """Set in this process what the environment no longer reaches; starts nothing."""

    def start(self, topology: Topology, *, spmd: bool) -> None:
        """Start the runtime in this process; raises RuntimeError if it is not the topology's."""

    def unproven(self, process: Events, case: Events) -> str:
        """Why a pass would say nothing about the lane, or "".

        ``process`` are the events of the test's whole process, ``case`` those of the test alone.
        """

    def facts(self, events: Events) -> Mapping[str, str]:
        """What the lane measured in a case, as JUnit properties; empty ones are left out."""


LANES: Mapping[str, Lane] = {
    lane.name: lane for lane in (CpuLane(), VirtualTpuLane(), TpuAotLane(), TpuLane())
}


def lane_named(name: str) -> Lane:
    """The lane of that name; raises BadInputError with the names there are."""
    try:
        return LANES[name]
    except KeyError:
        raise BadInputError(f"lane {name!r}: expected one of {', '.join(LANES)}") from None


def lane_can(lane: Lane, topology: Topology) -> Topology:
    """``topology``, if the lane can have it; raises BadInputError otherwise."""
    lane.check(topology)
    return topology
