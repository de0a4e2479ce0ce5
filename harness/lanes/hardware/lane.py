"""Lanes ``tpu`` and ``gpu``: real devices, whose plugin counts each call and hands it on."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from dataclasses import astuple
from functools import cached_property

import wrapt

from harness import frameworks
from harness.errors import BadInputError
from harness.lanes.events import Events
from harness.lanes.hardware.enough import why_not
from harness.lanes.lane_protocol import RealLane
from harness.lanes.virtual import library
from harness.lanes.virtual.lane import requests, unless_client
from harness.model.topology import Topology
from harness.platforms.description import Hardware, Platform
from harness.platforms.tpu import TPU

FORWARD = "VIRTUAL_TPU_FORWARD"  # the library that the plugin forwards to, and emulates nothing


class HardwareLane(RealLane):
    """Runs the cases of a platform's virtual lane on this machine's devices."""

    counts_events = True
    compiles_only = False

    def __init__(self, platform: Platform = TPU) -> None:
        self.platform, self.name = platform, platform.name
        self.runs_cases_of = f"virtual-{platform.name}"
        self.needs = self._hardware.needs

    @property
    def default_topology(self) -> Topology:
        """The hardware's; without any, where no case runs anyway, that of the virtual lane."""
        try:
            return Topology.parse(self._hardware.topology())
        except BadInputError:
            return Topology(1, 4)

    def lacks(self, needed: Topology) -> str:
        return why_not(needed, self.default_topology, divides=self._hardware.divides)

    def check(self, topology: Topology) -> None:
        self.platform.generation(topology.generation)  # whether it is this one is asked later

    def missing(self) -> str:
        try:
            Topology.parse(self._hardware.topology())
            self.library()
        except BadInputError as error:
            return str(error)
        return ""

    def preload(self) -> None:
        """Map both libraries once for all processes forked later; loading starts no thread."""
        library.load_plugin()
        path = self.library()
        try:
            ctypes.CDLL(path)
        except OSError as error:
            raise BadInputError(
                f"lane {self.name}: {path}: expected a PJRT plugin: {error}"
            ) from error

    def environment(self, topology: Topology) -> Mapping[str, str | None]:
        return {  # the machine's own variables say the topology
            **frameworks.environment(self.platform.name, topology.total),
            FORWARD: self.library(),
            "VIRTUAL_TPU_PLUGIN": str(library.PLUGIN),
            "VIRTUAL_TPU_LAUNCH": ",".join(astuple(self.platform.launch)),
            **self._hardware.environment(str(library.PLUGIN), topology.total),
        }

    def prepare(self, topology: Topology) -> None:
        for name, hook in self._hardware.on_import.items():
            wrapt.register_post_import_hook(hook, name)
        frameworks.prepare(self.platform.name, topology.total)

    def unproven(self, process: Events, case: Events) -> str:
        del case
        return unless_client(self.name, process)

    def facts(self, events: Events) -> Mapping[str, str]:
        """Return counts of this worker's requests to the library, and what the devices are."""
        return {**requests(events), **self._described}

    def library(self) -> str:
        """Return the path of the vendor's PJRT plugin; raise BadInputError without any."""
        # An earlier case of a process without isolation has put the plugin in its place.
        return os.environ.get(FORWARD) or self._hardware.library()

    @property
    def _hardware(self) -> Hardware:
        assert self.platform.hardware is not None, "only such a platform has this lane"
        return self.platform.hardware

    @cached_property
    def _described(self) -> Mapping[str, str]:
        return self._hardware.facts()
