"""Loads JAX's CUDA plugin beside the virtual GPUs of this process; it needs no GPU and no driver.

What it compiles for is a target configuration, as
https://github.com/openxla/xla/blob/main/xla/stream_executor/device_description.proto describes it.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from packaging.version import Version

from harness.errors import BadInputError
from harness.lanes.aot import cubin, optimized
from harness.lanes.aot.cubin import KernelUse
from harness.lanes.aot.optimized import Optimized
from harness.model.topology import Topology
from harness.model.versions import installed, present
from harness.platforms import generation_named
from harness.platforms.gpu import TARGETS, machine, packages

NAME = "the CUDA plugin"
LIBRARY = "jax_plugins/xla_cuda1?/xla_cuda_plugin.so"
NEEDS = ("jaxlib", *map("|".join, zip(*map(packages.plugin, packages.CUDAS), strict=True)))
DEFAULT = "2xh100:4"
# Not JAX_SKIP_CUDA_CONSTRAINTS_CHECK: JAX would register the plugin in the virtual GPUs' place.
ENVIRONMENT: Mapping[str, str] = {"TF_CPP_MIN_LOG_LEVEL": "3"}
# Without a card nothing can be measured, and with one other kernels win on each.
OPTIONS: Mapping[str, str] = {"xla_gpu_autotune_level": "0"}
_LAST_WITHOUT = "0.8.1"  # of those that do not hand out the optimized program
_REGISTERED = "cuda_aot"  # under which jaxlib keeps it: "cuda" are the virtual GPUs
_PLATFORM = "CUDA"
_FIELD = re.compile(r"^  \w+(?:: .*\n| \{\n(?:    .*\n)*  \}\n)", re.MULTILINE)
_MEMORY = re.compile(r"^  device_memory_size: (\d+)$", re.MULTILINE)


def missing() -> str:
    """Return that no CUDA plugin is installed, or that it is too old; "" if one can compile."""
    versions = present({name: installed(name) for name in packages.PACKAGES})
    if not versions:
        return "no CUDA plugin is installed: expected jax-cuda12-plugin or jax-cuda13-plugin"
    for name, version in versions.items():
        if Version(version) <= Version(_LAST_WITHOUT):
            why = "does not hand out what it has compiled"
            return f"{name} {version} {why}: expected a newer one than {_LAST_WITHOUT}"
    return "" if find_spec("jaxlib") else "jaxlib is not installed, which hands the plugin programs"


def check(topology: Topology) -> None:
    """Raise BadInputError for a GPU without a target configuration."""
    _target(topology)


@cache
def preload() -> None:
    """Raise BadInputError without the plugin; that versions fit is checked for every lane.

    The library starts threads when it is initialised, so that this is left to each case.
    """
    if why := missing():
        raise BadInputError(f"lane gpu-aot: {why}")
    machine.library()


@cache
def _plugin() -> Any:
    """Return the plugin's PJRT API, initialised in this process, which has threads from then on."""
    from jaxlib import xla_client

    plugin = xla_client.load_pjrt_plugin_dynamically(_REGISTERED, machine.library())
    if not xla_client.pjrt_plugin_initialized(_REGISTERED):
        xla_client.initialize_pjrt_plugin(_REGISTERED)
    # As JAX does where it loads the plugin: what programs may call, such as cuSOLVER.
    package = next(name for name in packages.PACKAGES if find_spec(name))
    extension = import_module(f"{package}.cuda_plugin_extension")
    register = partial(extension.register_custom_call_target, plugin)
    xla_client.register_custom_call_handler(_PLATFORM, register)
    for name, handler in extension.ffi_handlers().items():
        register(name, handler, _PLATFORM, 1)
    return plugin


@cache
def devices(topology: Topology) -> Sequence[Any]:
    """Return the devices of a topology to compile for, node by node; BadInputError."""
    preload()
    try:
        name, options = described(topology)
        compile_only = _description(name, options)._make_compile_only_devices()
    except Exception as error:
        raise BadInputError(f"topology {topology}: {NAME} refuses it: {error}") from error
    return sorted(compile_only, key=lambda device: device.id)


def described(topology: Topology) -> tuple[str, Mapping[str, Any]]:
    """Return the name and the options of a topology, with the fields that this version knows."""
    options = {"topology": _shape(topology), "target_config": _target(topology)}
    try:
        _description("", options)
    except Exception:  # an older version does not know all of the fields
        options["target_config"] = _readable(options["target_config"])
    return "", options


def _shape(topology: Topology) -> str:
    """Return the topology as XLA writes it: NVLink domains, nodes of each, GPUs of a node."""
    nodes = generation_named(topology.generation).hosts(topology.devices)
    return f"{topology.slices}x{nodes}x{topology.devices // nodes}"


def _description(name: str, options: Mapping[str, Any]) -> Any:
    from jaxlib import xla_client

    return xla_client.make_c_api_device_topology(_plugin(), name, **options)


def _readable(target: str) -> str:
    """Return the configuration with those fields only that the installed version knows."""

    def is_known(field: re.Match[str]) -> str:
        try:
            target = f"gpu_device_info {{\n{field[0]}}}\n"
            _description("", {"topology": "1x1x1", "target_config": target})
        except Exception:  # XlaRuntimeError's place changed with jaxlib
            return ""
        return field[0]

    info, end, rest = target.partition("\n}\n")
    return _FIELD.sub(is_known, f"{info}\n") + end.removeprefix("\n") + rest


@cache
def _target(topology: Topology) -> str:
    path = TARGETS / f"{topology.generation}.txtpb"
    try:
        return path.read_text()
    except OSError as error:
        known = ", ".join(sorted(file.stem for file in TARGETS.glob("*.txtpb")))
        raise BadInputError(
            f"topology {topology}: no target configuration for {topology.generation}: expected "
            f"{path}; there is one for {known}"
        ) from error


def memory(topology: Topology) -> int:
    """Return the bytes of a GPU."""
    size = _MEMORY.search(_target(topology))
    return int(size[1]) if size else 0


def read(module: bytes, topology: Topology) -> Optimized:
    """Return the facts of an optimized program, which is one for all devices."""
    return optimized.read(module, topology.devices, whole=True)


def on_chip(program: Optimized) -> None:
    """Return nothing: a GPU's kernels are in :func:`kernel_use`."""
    del program


def kernel_use(executable: Any) -> Mapping[str, KernelUse]:
    """Return what each kernel uses; nothing where this version serialises no program.

    Warns where the program is serialised in a format that is not known here.
    """
    try:
        program = executable.serialize()
    except RuntimeError:  # XlaRuntimeError is one, whose own place changed with jaxlib
        return {}
    try:
        return cubin.kernel_use(program)
    except Exception as error:  # a reader of binary data fails in many ways
        text = f"what kernels use of a GPU is unknown: a serialised program of jaxlib: {error!r}"
        warnings.warn(text, stacklevel=2)
        return {}


def misfit() -> str:
    """Return nothing: :func:`preload` has compared the versions."""
    return ""
