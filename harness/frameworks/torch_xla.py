"""torch_xla: PyTorch on XLA, with a lazy runtime of its own."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from harness.frameworks.protocol import Framework, NamedPlatforms
from harness.platforms import PLATFORMS


class TorchXla(Framework):
    """The framework ``torch_xla``; torch belongs to it, since each version is built for one."""

    name = "torch_xla"
    packages = ("torch", "torch_xla")
    # Not torchax: it renames PyTorch's PrivateUse1 backend, and then torch.distributed raises.
    preload = (
        "torch_xla.core.xla_model",
        "torch_xla.distributed.spmd",
        "torch_xla.experimental.custom_kernel",
    )
    read_at_import = (
        "XLA_IR_DEBUG",
        "XLA_USE_EAGER_DEBUG_MODE",
        "TF_CPP_VMODULE",
        "XLA_NO_SPECIAL_SCALARS",
        "XLA_DYNAMO_DEBUG",
    )

    def environment(self, platform: str, devices: int) -> Mapping[str, str | None]:
        if platform == "cpu":
            return {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": str(devices)}
        return {"PJRT_DEVICE": PLATFORMS[platform].frameworks.get(self.name)}

    def prepare(self, platform: str, devices: int) -> None:
        """Do nothing: torch_xla reads its variables when the runtime starts."""

    def named_platforms(self, environment: Mapping[str, str]) -> Sequence[NamedPlatforms]:
        return [NamedPlatforms("PJRT_DEVICE", environment.get("PJRT_DEVICE", ""), "PJRT_DEVICE")]

    def clients(self) -> Sequence[str]:
        started = getattr(sys.modules.get("_XLAC"), "_xla_runtime_is_initialized", None)
        return ["torch_xla's"] if started is not None and started() else []

    def start(self, devices: int, *, spmd: bool) -> None:
        import torch_xla
        import torch_xla.runtime as xr

        if spmd:
            xr.use_spmd()
        torch_xla.device()
        count = xr.global_runtime_device_count()
        if count != devices:
            raise RuntimeError(f"the runtime has {count} devices, expected {devices}")
