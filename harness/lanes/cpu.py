"""Lane ``cpu``: PJRT's own CPU client with as many virtual devices as the topology has."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from harness.errors import BadInputError
from harness.frameworks import torch_xla as torch_runtime
from harness.lanes.events import Events
from harness.model.topology import Topology


class CpuLane:
    """torch_xla's and JAX's CPU clients, side by side in one process."""

    name = "cpu"
    default_topology = Topology(1, 4)

    def check(self, topology: Topology) -> None:
        if topology.generation:
            raise BadInputError(f"topology {topology}: lane cpu has no TPU generation")

    def missing(self) -> str:
        return ""

    def preload(self) -> None:
        """Everything is in the frameworks themselves."""

    def environment(self, topology: Topology) -> Mapping[str, str | None]:
        count = str(topology.total)
        return {
            "PJRT_DEVICE": "CPU",
            "CPU_NUM_DEVICES": count,
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": count,
        }

    def prepare(self, topology: Topology) -> None:
        # JAX read its variables when it was imported, before the fork. Without a platform it
        # would look for a TPU first.
        if "jax" in sys.modules:
            import jax

            jax.config.update("jax_platforms", "cpu")
            if hasattr(jax.config, "jax_num_cpu_devices"):
                jax.config.update("jax_num_cpu_devices", topology.total)
            else:  # before JAX 0.5
                flag = f"--xla_force_host_platform_device_count={topology.total}"
                os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}"

    def start(self, topology: Topology, *, spmd: bool) -> None:
        torch_runtime.start(topology, spmd=spmd)

    def unproven(self, process: Events, case: Events) -> str:
        del process, case  # nothing counts what is asked of PJRT's own CPU client
        return ""

    def facts(self, events: Events) -> Mapping[str, str]:
        del events
        return {}
