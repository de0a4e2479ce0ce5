"""Lane ``tpu``: real chips. The plugin forwards every call to libtpu and counts those it needs."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from dataclasses import astuple

from harness import frameworks
from harness.errors import BadInputError
from harness.lanes.events import Events
from harness.lanes.hardware import machine
from harness.lanes.lane_protocol import Lane
from harness.lanes.virtual import library
from harness.lanes.virtual.lane import unless_client
from harness.model.topology import Topology
from harness.platforms.tpu import TPU, libtpu_file

FORWARD = "VIRTUAL_TPU_FORWARD"  # the library that the plugin forwards to, and emulates nothing


class TpuLane(Lane):
    """Runs the cases of lane ``virtual-tpu`` on the hardware of this machine."""

    name = "tpu"
    counts_events = True
    compiles_only = False
    runs_cases_of = "virtual-tpu"
    needs = ("libtpu",)

    @property
    def default_topology(self) -> Topology:
        """The hardware's; without any, where no case runs anyway, the virtual TPU's."""
        try:
            return machine.topology()
        except BadInputError:
            return Topology(1, 4)

    def check(self, topology: Topology) -> None:
        TPU.generation(topology.generation)  # whether it is this hardware's is asked later

    def missing(self) -> str:
        try:
            machine.topology()
        except BadInputError as error:
            return str(error)
        return ""

    def preload(self) -> None:
        """Map both libraries once for all processes forked later; loading starts no thread."""
        library.load()
        path = libtpu()
        try:
            ctypes.CDLL(path)
        except OSError as error:
            raise BadInputError(f"lane tpu: {path}: expected libtpu: {error}") from error

    def environment(self, topology: Topology) -> Mapping[str, str | None]:
        return {  # the machine's own variables say the topology
            **frameworks.environment(TPU.name, topology.total),
            "TPU_LIBRARY_PATH": str(library.PLUGIN),
            FORWARD: libtpu(),
            "VIRTUAL_TPU_LAUNCH": ",".join(astuple(TPU.launch)),
            TPU.launch.no_discovery: None,
        }

    def prepare(self, topology: Topology) -> None:
        frameworks.prepare(TPU.name, topology.total)

    def unproven(self, process: Events, case: Events) -> str:
        del case
        return unless_client(self.name, process)

    def facts(self, events: Events) -> Mapping[str, str]:
        """Return counts of this worker's requests to libtpu."""
        return {
            "clients": str(len(events.of("client"))),
            "discoveries": str(len(events.discoveries)),
            "compilations": str(len(events.of("compile"))),
            "executions": str(len(events.of("execute"))),
        }


def libtpu() -> str:
    """Return the path of the user's libtpu, or the stack's; raise BadInputError without any."""
    named = os.environ.get("TPU_LIBRARY_PATH", "")
    if named == str(library.PLUGIN):  # of an earlier case, in a process without isolation
        named = os.environ.get(FORWARD, "")
    if not named and (own := libtpu_file.library()):
        named = str(own)
    if not named:
        raise BadInputError(
            "lane tpu: libtpu is not installed: expected its package, or TPU_LIBRARY_PATH"
        )
    return named
