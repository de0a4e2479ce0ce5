"""Lane ``cpu``: PJRT's own CPU client with as many virtual devices as the topology has."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from harness.topology import Topology


class CpuLane:
    """torch_xla's and JAX's CPU clients, side by side in one process."""

    name = "cpu"
    default_topology = Topology(1, 4)

    def environment(self, topology: Topology) -> Mapping[str, str]:
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
            jax.config.update("jax_num_cpu_devices", topology.total)

    def start(self, topology: Topology, *, spmd: bool) -> None:
        import torch_xla
        import torch_xla.runtime as xr

        if spmd:
            xr.use_spmd()
        torch_xla.device()
        found = xr.global_runtime_device_count()
        if found != topology.total:
            raise RuntimeError(f"the CPU client has {found} devices, expected {topology.total}")
