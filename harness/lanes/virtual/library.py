"""Where the plugin and its backend are, and the environment that makes frameworks load them."""

from __future__ import annotations

import ctypes
import math
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from harness import frameworks
from harness.errors import BadInputError
from harness.lanes import libtpu_file
from harness.messages import new_token
from harness.messages.ports import HOST, free_port
from harness.model.generations import generation_named
from harness.model.topology import Topology

PLUGIN = Path(__file__).with_name("libvirtual_tpu.so")
_STARTUP = Path(__file__).with_name("startup")
# For stacks without a libtpu: JAX refuses to lower kernels for one that is older than it asks for.
_BUILD = "Built on Jan 1 2100 00:00:00 (4102444800)"
MOST_DEVICES = 4096
# Each makes JAX look for another cluster than the TPU's, or listen at another address.
_JAX_ELSEWHERE = dict.fromkeys(
    ("SLURM_JOB_ID", "OMPI_MCA_orte_hnp_uri", "JAX_COORDINATOR_BIND_ADDRESS")
)
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


@cache
def load() -> ctypes.CDLL:
    """The plugin, with its backend loaded too; starts no client and no thread.

    Raises:
        BadInputError: the plugin was not compiled, is another version's, or its backend is missing
            or can't be loaded.
    """
    if not PLUGIN.exists():
        raise BadInputError(
            f"lane virtual-tpu: {PLUGIN.name} is missing: it is compiled when xla-harness is "
            "installed; install it again on a machine with a C compiler"
        )
    try:
        library = ctypes.CDLL(str(PLUGIN))
        library.virtual_tpu_version.restype = ctypes.c_char_p
        found = library.virtual_tpu_version().decode()
    except (OSError, AttributeError) as error:
        raise BadInputError(f"lane virtual-tpu: {PLUGIN}: expected the plugin: {error}") from error
    expected = version("xla-harness")
    if found != expected:
        raise BadInputError(
            f"lane virtual-tpu: {PLUGIN.name} is version {found}, expected {expected}: "
            "install xla-harness again"
        )
    backend = backend_path()
    library.virtual_tpu_why_missing.restype = ctypes.c_char_p
    if library.virtual_tpu_preload(str(backend).encode()):
        raise BadInputError(f"lane virtual-tpu: {library.virtual_tpu_why_missing().decode()}")
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


@cache
def _libtpu_build() -> str:
    """What the stack's own libtpu says of its build: JAX asks for it before it lowers a kernel."""
    path = libtpu_file.library()
    return (libtpu_file.build(path) if path else "") or _BUILD


def environment(topology: Topology) -> dict[str, str | None]:
    """What makes torch_xla and JAX start on a virtual TPU of that topology; None unsets.

    Raises BadInputError for an unknown generation.
    """
    generation = generation_named(topology.generation)
    bounds = _written(topology.bounds)
    wrapper = "megascale+" if topology.slices > 1 else ""  # libtpu's client over all slices
    return {
        **frameworks.environment("tpu", topology.total),
        "TPU_LIBRARY_PATH": str(PLUGIN),
        "VIRTUAL_TPU_BACKEND": str(backend_path()),
        "VIRTUAL_TPU_PYTHON": sys.executable,
        "VIRTUAL_TPU_TOPOLOGY": f"{topology.slices}x{topology.devices}",
        "VIRTUAL_TPU_BOUNDS": bounds,
        "VIRTUAL_TPU_KIND": generation.device_kind,
        "VIRTUAL_TPU_PCI": f"0x{generation.pci:04x}",
        "VIRTUAL_TPU_CORES": str(generation.cores),
        "VIRTUAL_TPU_MEMORY": str(generation.device_memory),
        "VIRTUAL_TPU_CHIPS": str(topology.chips * (1 if topology.processes else topology.slices)),
        "VIRTUAL_TPU_PLATFORM": f"{wrapper}TFRT {generation.device_kind}\n{_libtpu_build()} "
        "virtual TPU",
        "MEGASCALE_NUM_SLICES": str(topology.slices) if topology.slices > 1 else None,
        "MEGASCALE_SLICE_ID": None,
        "MEGASCALE_COORDINATOR_ADDRESS": None,
        "SKIP_MEGASCALE_PJRT_CLIENT": None,
        "TORCH_TPU_DEVICES_PER_HOST": None,
        "TPU_ACCELERATOR_TYPE": generation.accelerator_type(topology.chips),
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_WORKER_ID": "0",
        "TPU_WORKER_HOSTNAMES": "localhost",
        # Lists of processes that JAX reads instead, of a job that this one is not part of.
        "TPU_PROCESS_ADDRESSES": None,
        "TPU_PROCESS_ADDRESSES_PATH": None,
        **_JAX_ELSEWHERE,
        # JAX's own port is the same for all jobs of a machine.
        "JAX_COORDINATOR_ADDRESS": f"{HOST}:{free_port()}",
        "PYTHONPATH": _python_path(),  # of all that the process starts
        **_processes(topology),
        "XLA_HARNESS_JOB": secrets.token_hex(8),
        "XLA_HARNESS_JOB_TOKEN": new_token(),
        # Old torch_xla asks for exactly its own PJRT version without it.
        "ENABLE_PJRT_COMPATIBILITY": "1",
        # A thread for each replica: with as many as cores, fewer than all reach a collective.
        "XLA_THREAD_POOL_SIZE": str(max(_LEAST_THREADS, topology.total)),
    }


def process_environment(topology: Topology, number: int) -> dict[str, str]:
    """What makes a process number ``number`` of the topology's job, from 0, as libtpu reads it.

    https://github.com/pytorch/xla/blob/v2.9.0/torch_xla/_internal/tpu.py (configure_topology)
    """
    of_slice = topology.process_count // topology.slices
    slice_number, task = divmod(number, of_slice)
    chips = math.prod(topology.process_bounds)
    first = task * chips
    found = {
        "TPU_PROCESS_BOUNDS": _written(topology.process_grid),
        "TPU_CHIPS_PER_PROCESS_BOUNDS": _written(topology.process_bounds),
        "TPU_VISIBLE_CHIPS": ",".join(map(str, range(first, first + chips))),
        "CLOUD_TPU_TASK_ID": str(task),
        # JAX takes each for a worker, and counts them by their names.
        "TPU_WORKER_ID": str(task),
        "TPU_WORKER_HOSTNAMES": ",".join([HOST] * of_slice),
        "VIRTUAL_TPU_CHIPS": str(chips),
    }
    if topology.slices > 1:
        found["MEGASCALE_SLICE_ID"] = str(slice_number)
    return found


def _processes(topology: Topology) -> dict[str, str | None]:
    """Which process has which chips, as it is before a launcher divides them."""
    bounds = _written(topology.bounds)
    if not topology.processes:  # one has all chips of all slices
        return {
            "TPU_PROCESS_BOUNDS": "1,1,1",
            "TPU_CHIPS_PER_PROCESS_BOUNDS": bounds,
            "CLOUD_TPU_TASK_ID": None,
            "TPU_VISIBLE_CHIPS": None,
        }
    return {
        "TPU_PROCESS_BOUNDS": None,
        "TPU_CHIPS_PER_PROCESS_BOUNDS": None,
        "TPU_HOST_BOUNDS": "1,1,1",
        "TPU_CHIPS_PER_HOST_BOUNDS": bounds,
        "CLOUD_TPU_TASK_ID": None,
        "TPU_VISIBLE_CHIPS": None,
    }


def _python_path() -> str:
    """The path of this process, with what prepares a new Python for a virtual TPU first."""
    given = os.environ.get("PYTHONPATH", "")
    folders = [folder for folder in given.split(os.pathsep) if folder != str(_STARTUP)]
    return os.pathsep.join([str(_STARTUP), *folders] if given else [str(_STARTUP)])


def _written(bounds: tuple[int, int, int]) -> str:
    return ",".join(map(str, bounds))
