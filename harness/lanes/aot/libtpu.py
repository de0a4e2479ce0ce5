"""Loads the installed libtpu beside the virtual TPU of this process."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harness.errors import BadInputError
from harness.lanes.aot import dump, optimized
from harness.lanes.aot.optimized import Optimized
from harness.model.topology import Topology
from harness.model.versions import installed
from harness.platforms.tpu import libtpu_file
from harness.platforms.tpu.libtpu_file import library

NAME = "libtpu"
LIBRARY = "libtpu/libtpu.so"
NEEDS = ("libtpu", "jaxlib")
DEFAULT = "2xv6e:2x2"
OPTIONS: Mapping[str, str] = {}
_REGISTERED = "libtpu_aot"  # under which jaxlib keeps it: "tpu" is the virtual TPU
# Read when libtpu is initialised. It would take a lock file that only one process of the machine
# can have, ask the metadata server of a TPU machine who it is, and write logs to /tmp.
ENVIRONMENT: Mapping[str, str] = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_LOG_DIR": "disabled",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "TPU_ACCELERATOR_TYPE": "v6e-4",
}


def missing() -> str:
    """Return which package is missing; "" if none is."""
    if not library():
        where = "which PyPI has for Linux on x86-64 from 0.0.1 on"
        return f"libtpu is not installed: expected the package libtpu, {where}"
    if not find_spec("jaxlib"):
        return "jaxlib is not installed: expected it beside libtpu, which takes programs from it"
    return ""


def library_path() -> Path:
    """Return the path of the stack's ``libtpu.so``; raise BadInputError if something is missing."""
    path = library()
    if (why := missing()) or path is None:
        raise BadInputError(f"lane tpu-aot: {why}")
    return path


@cache
def preload() -> None:
    """Map the library, once for all processes that are forked later; starts no thread.

    Raises BadInputError when it, or jaxlib, is missing or can't be loaded.
    """
    try:
        ctypes.CDLL(str(library_path()))
    except OSError as error:
        raise BadInputError(f"lane tpu-aot: {library_path()}: expected libtpu: {error}") from error


@cache
def _plugin() -> Any:
    """Return libtpu's PJRT API, initialised in this process, which has threads from then on."""
    from jaxlib import xla_client

    with dump.dumping():
        plugin = xla_client.load_pjrt_plugin_dynamically(_REGISTERED, str(library_path()))
        if not xla_client.pjrt_plugin_initialized(_REGISTERED):
            xla_client.initialize_pjrt_plugin(_REGISTERED)
    return plugin


@cache
def devices(topology: Topology) -> Sequence[Any]:
    """Return the devices of a topology to compile for, slice by slice.

    The compiler is ``[0].client``. Raises BadInputError, with libtpu's message, for a slice that
    the installed libtpu does not know, and where libtpu or jaxlib is missing.
    """
    preload()
    from jaxlib import xla_client

    name, options = described(topology)
    try:
        description = xla_client.make_c_api_device_topology(_plugin(), name, **options)
        compile_only = description._make_compile_only_devices()
    except Exception as error:
        raise BadInputError(
            f"topology {topology}: libtpu {installed('libtpu')} refuses it: {error}"
        ) from error
    if len(compile_only) != topology.total:
        raise BadInputError(
            f"topology {topology}: libtpu {installed('libtpu')} has {len(compile_only)} devices, "
            f"expected {topology.total}"
        )
    return sorted(compile_only, key=lambda device: (getattr(device, "slice_index", 0), device.id))


def described(topology: Topology) -> tuple[str, Mapping[str, Any]]:
    """Return libtpu's name and options of a topology."""
    options: dict[str, Any] = {}
    if topology.slices > 1:
        options["num_slices"] = topology.slices
    if topology.chips == 1:  # libtpu expects hosts of four chips
        options["chips_per_host_bounds"] = [1, 1, 1]
    if topology.generation == "v4":  # or else each TensorCore is a device
        options["chip_config_name"] = "megacore"
    return topology.slice, options


def check(topology: Topology) -> None:
    """Accept every slice that exists: what libtpu knows it says when it is loaded."""
    del topology


def memory(topology: Topology) -> int:
    """Return 0: libtpu itself refuses a program that needs more than a chip has."""
    del topology
    return 0


def read(module: bytes, topology: Topology) -> Optimized:
    """Return the facts of an optimized program, of which libtpu makes one for each slice."""
    return optimized.read(module, topology.devices)


def on_chip(program: Optimized) -> dump.OnChip | None:
    """Return what the kernels of the program compiled last use; None if libtpu does not say it."""
    return dump.read(program.kernel_names)


def kernel_use(executable: Any) -> Mapping[str, Any]:
    """Return nothing: a TPU's kernels are in :func:`on_chip`."""
    del executable
    return {}


def misfit() -> str:
    """Return jax's requirement if it asks for another libtpu, or ""."""
    return libtpu_file.not_asked_for()
