"""Makes frameworks find the devices of a virtual GPU, where there is no device file of one."""

from __future__ import annotations

from typing import Any


def show_gpu(hardware: Any) -> None:
    """Tell JAX that there is an NVIDIA GPU, for which it looks among the device files."""
    hardware.has_visible_nvidia_gpu = lambda: True
