"""Makes frameworks find a virtual GPU, and the plugin that counts in front of a real one."""

from __future__ import annotations

import os
from functools import wraps
from pathlib import Path
from typing import Any


def show_gpu(hardware: Any) -> None:
    """Tell JAX that there is an NVIDIA GPU, for which it looks among the device files."""
    hardware.has_visible_nvidia_gpu = lambda: True


def hand_options(bridge: Any) -> None:
    """Have JAX hand each client of a job its options, such as the devices that it may use.

    It forgets them in a job, if the plugin was registered without options of its own, as those that
    a variable names are.
    """
    register = bridge.register_plugin

    @wraps(register)
    def with_options(name: str, *, options: Any = None, **keywords: Any) -> Any:
        if keywords.get("factory") is None:  # which has options of its own
            options = options or {}
        return register(name, options=options, **keywords)

    bridge.register_plugin = with_options


def name_plugin(package: Any) -> None:
    """Let JAX's package for CUDA load the plugin that counts, which hands on to its own."""
    package._get_library_path = lambda: Path(os.environ["VIRTUAL_TPU_PLUGIN"])


def leave_out(plugin: Any) -> None:
    """Keep JAX's own plugin from taking the platform, for which it looks for NVIDIA's libraries."""
    plugin.initialize = lambda: None
