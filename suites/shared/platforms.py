"""Which devices the lane of this process has."""

from __future__ import annotations

from harness.platforms import platform_here


def is_on_gpus() -> bool:
    """Return whether they are GPUs."""
    return platform_here().name == "gpu"
