"""How a process joins its job's process group, and what a step ends with, for each framework."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
import torch.distributed as dist


class Backend(Protocol):
    """A framework's own backend of torch.distributed."""

    group_options: Mapping[str, Any] | None
    """What ``new_group`` needs as ``pg_options``, for groups that have all ranks between them."""

    def join(self) -> torch.device:
        """Join the job, and its process group; return this process's device."""
        ...

    def end_step(self) -> None:
        """Start what has only been traced."""
        ...

    def settle(self) -> None:
        """Wait for all that this process has queued.

        A rank that leaves early breaks the programs that others still run.
        """
        ...


class TorchXla:
    """Backend "xla"; tensors are traced, and compiled when a step ends."""

    # All groups of its shape, from one of them.
    group_options: Mapping[str, Any] | None = {"xla_pg_options": {"spmd": True}}

    def join(self) -> torch.device:
        import torch_xla.distributed.xla_backend  # noqa: F401 - registers backend "xla"

        device = join_replicas()
        dist.init_process_group("xla", init_method="xla://")
        return device

    def end_step(self) -> None:
        import torch_xla

        torch_xla.sync()

    def settle(self) -> None:
        from torch_xla.core import xla_model as xm

        self.end_step()
        xm.wait_device_ops()


class TorchTpu:
    """Backend "tpu"; each operation runs at once."""

    group_options: Mapping[str, Any] | None = None

    def join(self) -> torch.device:
        dist.init_process_group("tpu")
        return torch.device("tpu")

    def end_step(self) -> None:
        """Nothing is traced."""

    def settle(self) -> None:
        torch.accelerator.synchronize()
        # Rank 0 has the store, in which a sender still looks for its receiver.
        dist.barrier()


# A case that names none asks what only torch_xla has.
BACKENDS: Mapping[str, Backend] = {
    "": TorchXla(),
    "torch_xla": TorchXla(),
    "torch_tpu": TorchTpu(),
}


def join_replicas() -> torch.device:
    """Make this process a rank of torch_xla's job, as its launchers do; return its device."""
    import torch_xla
    from torch_xla.core import xla_model as xm

    device: torch.device = torch_xla.device()
    xm.set_replication(device, xm.get_xla_supported_devices())
    return device
