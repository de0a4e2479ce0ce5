"""TorchTPU: PyTorch's device ``tpu``, which runs eagerly and has one chip in a process of a job."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from harness.frameworks.protocol import Framework, NamedPlatforms


class TorchTpu(Framework):
    """The framework ``torch_tpu``, which takes any of several releases of torch."""

    name = "torch_tpu"
    packages = ("torch", "torch_tpu")
    # What it imports by itself when it finds a TPU, which the process that forks does not.
    preload = (
        "torch_tpu",
        "torch_tpu._internal.compile",
        "torch_tpu._internal.distributed.torchcomm_tpu",
        "torch_tpu._internal.profiler",
        "torch_tpu._internal.sync",
        "torch_tpu._internal.tracing",
        "torch.distributed.tensor",
    )
    processes = "chip"
    read_at_import = ("TORCH_DEVICE_BACKEND_AUTOLOAD",)

    def environment(self, platform: str, devices: int) -> Mapping[str, str | None]:
        del devices  # it has no variable for their number
        if platform != "tpu":
            return {}
        # Else what one case compiled, with a fault in torch_tpu perhaps, is kept in /dev/shm, and
        # later processes execute it: it is neither submitted, nor counted, nor compiled by libtpu.
        return {"TORCH_TPU_TIER2_COMPILATION_CACHE": "disabled"}

    def prepare(self, platform: str, devices: int) -> None:
        """Register its device, which it does at its import if there is a TPU by then."""
        del devices
        loader = sys.modules.get("torch_tpu._loader")
        if platform == "tpu" and loader is not None:
            loader.load()

    def named_platforms(self, environment: Mapping[str, str]) -> Sequence[NamedPlatforms]:
        del environment
        return []  # its device is always ``tpu``

    def clients(self) -> Sequence[str]:
        backend = sys.modules.get("torch_tpu._internal.device._device_ops_backend")
        started = getattr(backend, "_is_initialized", None)
        return ["torch_tpu's"] if started is not None and started() else []

    def start(self, devices: int, *, spmd: bool) -> None:
        del spmd  # each process of a job has a device of its own
        import torch
        import torch_tpu  # noqa: F401 - registers the device

        count = torch.accelerator.device_count()
        if count != devices:
            raise RuntimeError(f"torch_tpu has {count} devices, expected {devices}")
