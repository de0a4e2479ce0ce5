"""What starting torch_xla has in common on every lane."""

from __future__ import annotations

from harness.model.topology import Topology


def start(topology: Topology, *, spmd: bool) -> None:
    """Start torch_xla's runtime here; raises RuntimeError unless it has the topology's devices."""
    import torch_xla
    import torch_xla.runtime as xr

    if spmd:
        xr.use_spmd()
    torch_xla.device()
    found = xr.global_runtime_device_count()
    if found != topology.total:
        raise RuntimeError(f"the runtime has {found} devices, expected {topology.total}")
