"""Locate the plugin and its backend, and build the environment in which frameworks load them."""

from __future__ import annotations

import ctypes
import math
import os
import secrets
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from harness import frameworks
from harness.errors import BadInputError
from harness.messages import new_token
from harness.messages.ports import HOST, free_port
from harness.model.topology import Topology
from harness.platforms import Platform

PLUGIN = Path(__file__).with_name("libvirtual_tpu.so")
_STARTUP = Path(__file__).with_name("startup")
MOST_DEVICES = 4096
NOT_HERE = "needs this package's compiled part, which there is for Linux on x86-64 only"
_LEAST_THREADS = 16


def backend_path() -> Path:
    """OpenXLA's CPU plugin; raises BadInputError when its package is not installed."""
    spec = find_spec("xla_plugins")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        library = Path(folder) / "xla_cpu_pjrt" / "xla_cpu_pjrt.so"
        if library.exists():
            return library
    raise BadInputError(
        "lane virtual-tpu: xla_cpu_pjrt.so is missing: expected the package xla-cpu-pjrt==0.0.1, "
        "which PyPI has for Linux on x86-64"
    )


def is_compiled_here() -> bool:
    """Return whether the package has the plugin on such a machine; elsewhere it is Python only."""
    return sysconfig.get_platform() == "linux-x86_64"


@cache
def load() -> ctypes.CDLL:
    """Load the plugin and its backend; start no client and no thread.

    Raises:
        BadInputError: the plugin was not compiled, is another version's, or its backend is missing
            or can't be loaded.
    """
    library, backend = load_plugin(), backend_path()
    library.virtual_tpu_why_missing.restype = ctypes.c_char_p
    if library.virtual_tpu_preload(str(backend).encode()):
        raise BadInputError(f"lane virtual-tpu: {library.virtual_tpu_why_missing().decode()}")
    return library


@cache
def load_plugin() -> ctypes.CDLL:
    """Load the plugin alone, which needs no backend in front of a vendor's library.

    Raises BadInputError when it was not compiled, or is another version's.
    """
    if not PLUGIN.exists():
        if not is_compiled_here():
            raise BadInputError(f"lane virtual-tpu: {NOT_HERE}")
        raise BadInputError(
            f"lane virtual-tpu: {PLUGIN.name} is missing: it is compiled when xla-harness is "
            "installed; install it again on a machine with a C compiler"
        )
    try:
        library = ctypes.CDLL(str(PLUGIN))
        library.virtual_tpu_version.restype = ctypes.c_char_p
        actual = library.virtual_tpu_version().decode()
    except (OSError, AttributeError) as error:
        raise BadInputError(f"lane virtual-tpu: {PLUGIN}: expected the plugin: {error}") from error
    expected = version("xla-harness")
    if actual != expected:
        raise BadInputError(
            f"lane virtual-tpu: {PLUGIN.name} is version {actual}, expected {expected}: "
            "install xla-harness again"
        )
    return library


@contextmanager
def shared_compilations() -> Iterator[None]:
    """Within it, processes that are forked from this one compile equal programs once for all."""
    if not PLUGIN.exists():
        yield
        return
    library = ctypes.CDLL(str(PLUGIN))
    if wrong := library.virtual_tpu_share_compilations():
        raise OSError(wrong, os.strerror(wrong))
    try:
        yield
    finally:
        library.virtual_tpu_unshare_compilations()


def environment(topology: Topology, platform: Platform) -> dict[str, str | None]:
    """Return what makes frameworks start on virtual devices of the platform; None unsets.

    Raises BadInputError for a generation of another platform.
    """
    generation, launch = platform.generation(topology.generation), platform.launch
    topology = topology.on(platform)
    attributes = platform.attributes(generation, topology.slices)
    node = str(math.prod(topology.host_bounds) * generation.devices)
    variables = {
        **frameworks.environment(platform.name, topology.total),
        **{name: text.format(plugin=PLUGIN) for name, text in platform.loading.items()},
        "VIRTUAL_TPU_PLUGIN": str(PLUGIN),
        "VIRTUAL_TPU_BACKEND": str(backend_path()),
        "VIRTUAL_TPU_PYTHON": sys.executable,
        "VIRTUAL_TPU_TOPOLOGY": f"{topology.slices}x{topology.devices}",
        "VIRTUAL_TPU_BOUNDS": _written(topology.bounds),
        "VIRTUAL_TPU_NODE": node if platform.clients_say_place else None,
        "VIRTUAL_TPU_TITLE": platform.title,
        "VIRTUAL_TPU_NAME": platform.pjrt_name,
        "VIRTUAL_TPU_COMPILER": platform.compiler_name or None,
        "VIRTUAL_TPU_COMPILING_LANE": f"{platform.name}-aot",
        "VIRTUAL_TPU_DEVICE": platform.device,
        "VIRTUAL_TPU_DEVICE_REPR": platform.device_repr or platform.device,
        "VIRTUAL_TPU_ATTRIBUTES": ";".join(f"{k}={v}" for k, v in attributes.items()),
        "VIRTUAL_TPU_LAUNCH": ",".join(astuple(launch)),
        "VIRTUAL_TPU_KIND": generation.device_kind,
        "VIRTUAL_TPU_MEMORY": str(generation.device_memory),
        "VIRTUAL_TPU_CHIPS": str(topology.chips * (1 if topology.processes else topology.slices)),
        "VIRTUAL_TPU_PLATFORM": platform.version(generation, topology.slices),
        launch.slices: str(topology.slices) if topology.slices > 1 else None,
        launch.slice: None,
        launch.coordinator: None,
        launch.no_discovery: None,
        launch.process: None,
        launch.visible_chips: None,
        # One process has all chips of all slices, or else a launcher divides them later.
        launch.process_bounds: None if topology.processes else "1,1,1",
        launch.chips_per_process: None if topology.processes else _written(topology.bounds),
        launch.worker: "0",
        launch.hostnames: "localhost",
        **platform.environment(generation, topology),
        # JAX's own port is the same for all jobs of a machine.
        "JAX_COORDINATOR_ADDRESS": f"{HOST}:{free_port()}",
        "PYTHONPATH": _python_path(),  # of all that the process starts
        "XLA_HARNESS_JOB": secrets.token_hex(8),
        "XLA_HARNESS_JOB_TOKEN": new_token(),
        # Old torch_xla asks for exactly its own PJRT version without it.
        "ENABLE_PJRT_COMPATIBILITY": "1",
        # A thread for each replica: with as many as cores, fewer than all reach a collective.
        "XLA_THREAD_POOL_SIZE": str(max(_LEAST_THREADS, topology.total)),
    }
    return {name: value for name, value in variables.items() if name}


def process_environment(topology: Topology, platform: Platform, number: int) -> dict[str, str]:
    """Return what makes a process number ``number`` of the topology's job, unless clients do.

    A TPU's is as libtpu reads it, and as torch_xla's configure_topology sets it:
    https://github.com/pytorch/xla/blob/v2.9.0/torch_xla/_internal/tpu.py
    """
    if platform.clients_say_place:
        return {}
    topology, launch = topology.on(platform), platform.launch
    of_slice = topology.process_count // topology.slices
    slice_number, task = divmod(number, of_slice)
    chips = math.prod(topology.process_bounds)
    first = task * chips
    variables = {
        launch.process_bounds: _written(topology.process_grid),
        launch.chips_per_process: _written(topology.process_bounds),
        launch.visible_chips: ",".join(map(str, range(first, first + chips))),
        launch.process: str(task),
        # JAX takes each for a worker, and counts them by their names.
        launch.worker: str(task),
        launch.hostnames: ",".join([HOST] * of_slice),
        "VIRTUAL_TPU_CHIPS": str(chips),
        **({launch.slice: str(slice_number)} if topology.slices > 1 else {}),
    }
    return {name: value for name, value in variables.items() if name}


def _python_path() -> str:
    """Return this process's path, beginning with the folder that prepares a new Python."""
    given = os.environ.get("PYTHONPATH", "")
    folders = [folder for folder in given.split(os.pathsep) if folder != str(_STARTUP)]
    return os.pathsep.join([str(_STARTUP), *folders] if given else [str(_STARTUP)])


def _written(bounds: tuple[int, int, int]) -> str:
    return ",".join(map(str, bounds))
