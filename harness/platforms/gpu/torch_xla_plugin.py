"""Gives torch_xla, which has no plugin for CUDA of its own, the virtual GPU's."""

from __future__ import annotations

import os
from typing import Any

# The next one ends its process: "XLA:CUDA is not supported anymore", pytorch/xla#9603.
LAST = "2.8"


def register(_: Any) -> None:
    """Have torch_xla load the plugin for ``PJRT_DEVICE=CUDA``, before its first client.

    A process of a job says its place as torch_xla's own plugin for CUDA did:
    https://github.com/pytorch/xla/blob/v2.8.0/plugins/cuda/torch_xla_cuda_plugin/__init__.py
    """
    from torch_xla.experimental import plugins

    from harness.platforms import PLATFORMS

    class VirtualGpu(plugins.DevicePlugin):  # type: ignore[misc]
        """The virtual GPU's plugin, as torch_xla asks it."""

        def library_path(self) -> str:
            if why := PLATFORMS["gpu"].ended("torch_xla"):
                raise RuntimeError(f"torch_xla {why}, as pytorch/xla#9603 says")
            return os.environ["VIRTUAL_TPU_PLUGIN"]

        def physical_chip_count(self) -> int:
            in_job = int(os.environ.get("WORLD_SIZE") or 1) > 1
            return 1 if in_job else int(os.environ["VIRTUAL_TPU_CHIPS"])

        def configure_multiprocess(self, local_rank: int, local_world_size: int) -> None:
            for prefix in ("", "LOCAL_"):
                os.environ.setdefault(f"{prefix}RANK", str(local_rank))
                os.environ.setdefault(f"{prefix}WORLD_SIZE", str(local_world_size))

        def client_create_options(self) -> dict[str, int | list[int]]:
            names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
            rank, size, local, here = (int(os.environ.get(name) or 0) for name in names)
            if size < 2:
                return {}
            visible: dict[str, int | list[int]] = {"visible_devices": [local]} if here > 1 else {}
            return {"node_id": rank, "num_nodes": size, **visible}

    plugins.use_dynamic_plugins()
    plugins.register_plugin("CUDA", VirtualGpu())
