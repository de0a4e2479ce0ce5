"""Makes frameworks find a virtual GPU, and the plugin that counts in front of a real one."""

from __future__ import annotations

import os
import sys
from functools import partial, wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any

_CUDNN = 91_400  # of a cuDNN that has all that JAX asks for on Hopper and Blackwell
_VERSIONS = {
    "cuda_runtime": 12090,
    "cublas": 120901,
    "cufft": 11401,
    "cupti": 28,
    "cusolver": 11705,
    "cusparse": 12510,
}


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


def answer_versions(lib: Any) -> None:
    """Let JAX ask for the versions of NVIDIA's libraries, which its plugin loads to answer.

    They are those that the plugin was built with; without it, those of the plugin for CUDA 12.

    Args:
        lib: ``jax._src.lib``.
    """
    built = getattr(lib, "cuda_versions", None)
    versions = {
        name: getattr(built, f"{name}_build_version", lambda number=number: number)()
        for name, number in _VERSIONS.items()
    }
    versions |= {"cudnn": _CUDNN, "cuda_driver": versions["cuda_runtime"]}
    answers = {f"{name}_get_version": partial(int, n) for name, n in versions.items()}
    answers |= {f"{name}_build_version": partial(int, n) for name, n in versions.items()}
    answering = SimpleNamespace(
        **answers,
        cuda_device_count=lambda: int(os.environ["VIRTUAL_TPU_NODE"]),
        cuda_compute_capability=lambda _: _capability(),
        cuda_supports_multicast=lambda _: False,
    )
    for name, module in [*sys.modules.items()]:  # several have been imported before in a fork
        if name.startswith("jax.") and "cuda_versions" in vars(module):
            vars(module)["cuda_versions"] = answering


def _capability() -> int:
    """Return what each device can do as CUDA's library says it, such as 90 for ``9.0``."""
    attributes = os.environ["VIRTUAL_TPU_ATTRIBUTES"].split(";")
    values = dict(attribute.split("=", 1) for attribute in attributes)
    return int(values["compute_capability"].replace(".", ""))
