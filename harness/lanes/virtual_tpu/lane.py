"""Lane ``virtual-tpu``: CPU devices that torch_xla and JAX take for a multi-slice TPU."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping

from harness.errors import BadInputError
from harness.frameworks import torch_xla as torch_runtime
from harness.lanes.events import Events
from harness.lanes.virtual_tpu import library
from harness.model.topology import Topology, check_slice


def unless_client(lane: str, process: Events) -> str:
    """Why a pass says nothing about a lane of the plugin: it has created no client; or ""."""
    return "" if process.of("client") else f"no client of lane {lane} was created in its process"


class VirtualTpuLane:
    """torch_xla and JAX as two clients of one virtual TPU, in one process."""

    name = "virtual-tpu"
    default_topology = Topology(1, 4)

    def check(self, topology: Topology) -> None:
        check_slice(topology)
        if topology.total > library.MOST_DEVICES:
            raise BadInputError(
                f"topology {topology}: expected {library.MOST_DEVICES} devices at most"
            )

    def missing(self) -> str:
        return ""  # a part of this package: preload says what is wrong with it

    def preload(self) -> None:
        library.load()

    def environment(self, topology: Topology) -> Mapping[str, str | None]:
        return library.environment(topology)

    def prepare(self, topology: Topology) -> None:
        del topology
        from harness.lanes.virtual_tpu import process

        library.load()
        process.start()
        if "jax" in sys.modules:  # it read JAX_PLATFORMS when it was imported, before the fork
            import jax

            jax.config.update("jax_platforms", "tpu,cpu")

    def start(self, topology: Topology, *, spmd: bool) -> None:
        torch_runtime.start(topology, spmd=spmd)

    def unproven(self, process: Events, case: Events) -> str:
        del case
        return unless_client(self.name, process)

    def facts(self, events: Events) -> Mapping[str, str]:
        """Counts of what the case asked of the plugin; no kernel runs here but interpreted."""
        kernels = Counter(event.kernel for event in events.of("kernel"))
        return {
            "clients": str(len(events.of("client"))),
            "discoveries": str(len(events.discoveries)),
            "compilations": str(len(events.of("compile"))),
            "executions": str(len(events.of("execute"))),
            "pallas_interpreted": str(kernels.total() or ""),
            "pallas_kernels": ", ".join(f"{kernel} {n}" for kernel, n in sorted(kernels.items())),
        }
