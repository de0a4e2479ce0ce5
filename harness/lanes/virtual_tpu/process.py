"""The Python half of the plugin, in each process that loads it; the plugin itself calls it."""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
import traceback
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from types import CodeType
from typing import Any

import wrapt
from packaging.version import Version

from harness.lanes.virtual_tpu import callbacks, pallas
from harness.lanes.virtual_tpu.sites import NEAR, RUNNERS, is_runners, is_users

_Frame = tuple[int, CodeType, int]  # thread, code, line: of each thread, innermost first
_RUNNERS = (*RUNNERS, "/harness/lanes/virtual_tpu/")
_DEEPEST = 12  # frames of a stack that are told
_TAKES_THE_OLDER = Version("0.4.36")  # of its own StableHLO and of the one that a plugin reads


def start() -> str:
    """Make this process ready for a virtual TPU; starts no client and imports no framework.

    Does nothing in a process that has loaded the plugin for those that are forked from it.
    """
    if "VIRTUAL_TPU_TOPOLOGY" not in os.environ:
        return ""
    return _start()


@cache
def _start() -> str:
    library = ctypes.CDLL(os.environ["TPU_LIBRARY_PATH"])
    atexit.register(library.virtual_tpu_settle)
    callbacks.attach(library)
    pallas.record_kernels()
    prepare_frameworks()
    return ""


@cache
def prepare_frameworks() -> None:
    """Let frameworks find the chips of the virtual TPU when they are imported."""
    wrapt.register_post_import_hook(_show_chips, "torch_xla._internal.tpu")
    for name in ("cloud_tpu_init", "clusters.cluster", "clusters.cloud_tpu_cluster"):
        wrapt.register_post_import_hook(_is_tpu_machine, f"jax._src.{name}")
    wrapt.register_post_import_hook(_count_slices, "jax._src.clusters.cloud_tpu_cluster")
    wrapt.register_post_import_hook(_show_pci_devices, "torch_tpu._internal.utils.hardware")


def stack() -> str:
    """This thread's Python stack from the test on, the innermost call last."""
    frames = traceback.extract_stack()[:-1]
    own = [n for n, frame in enumerate(frames) if any(r in frame.filename for r in _RUNNERS)]
    return "".join(traceback.format_list(frames[max(own, default=-1) + 1 :]))


def stacks(frames: Sequence[_Frame]) -> str:
    """Where the user's code is in each thread that runs some, the main thread first."""
    main = threading.main_thread().ident
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    told = []
    for ident in sorted({ident for ident, _, _ in frames}, key=lambda one: one != main):
        stack = [(code, line) for thread, code, line in frames if thread == ident]
        users = [
            traceback.FrameSummary(code.co_filename, line, code.co_name)
            for code, line in reversed(stack)
            if is_users(code.co_filename)
        ][-_DEEPEST:]
        if users and ident in names:
            told.append(f"  thread {names[ident]}:\n")
            told += traceback.format_list(users)
    return "".join(told)


def stablehlo() -> str:
    """The newest StableHLO that frameworks may write programs in, where it is not the backend's.

    That is what this process's jaxlib writes, if it does not write what it is asked for; and what
    jaxlib reads, if TorchTPU asks: it has no older form of a scan, as in ``cumsum``. What JAX
    itself would write then has replica groups in a form that the CPU's compiler does not know.
    """
    ours = "jaxlib" in sys.modules and Version(version("jaxlib")) < _TAKES_THE_OLDER
    scans = "torch_tpu" in sys.modules and find_spec("jaxlib") is not None and not _is_jax_asking()
    if not ours and not scans:
        return ""
    from jaxlib.mlir.dialects import stablehlo as dialect

    return str(dialect.get_current_version())


def _is_jax_asking() -> bool:
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_globals.get("__name__", "").startswith("jax."):
            return True
    return False


def site(frames: Sequence[_Frame]) -> str:
    """The user's lines that this call comes from, innermost first, one after the other.

    In a thread that has no Python, those that the main thread is at, which may be beyond: they
    begin with "near".
    """
    here = threading.get_ident()
    near = "" if any(thread == here for thread, _, _ in frames) else NEAR
    asked = threading.main_thread().ident if near else here
    found = []
    for thread, code, line in frames:
        if thread != asked:
            continue
        if is_runners(code.co_filename):
            break
        if is_users(code.co_filename):
            found.append(f"{code.co_filename}:{line} {code.co_name}")
    more = ", ..." if len(found) > _DEEPEST else ""
    return f"{near}{', called from '.join(found[:_DEEPEST])}{more}" if found else ""


def _show_chips(tpu: Any) -> None:
    """torch_xla counts chips among the PCI devices, where a virtual TPU has none."""
    tpu.num_available_chips = _chips


def _is_tpu_machine(module: Any) -> None:
    """Tell JAX that it runs beside a TPU, which it knows by the chips on the PCI bus.

    It lowers kernels for the libtpu that it sees, and finds the processes of its job, only there.
    Two modules have copied the answer, before a fork maybe.
    """
    module.running_in_cloud_tpu_vm = True


def _count_slices(clusters: Any) -> None:
    """Let JAX count the slices that are other processes, without asking a metadata server.

    It multiplies the processes of a slice by the slices, but one process may have them all.
    """
    clusters.BaseTpuCluster._get_num_slices = staticmethod(lambda: _of_slices("NUM_SLICES", 1))
    clusters.BaseTpuCluster._get_slice_id = staticmethod(lambda: _of_slices("SLICE_ID", 0))


def _of_slices(name: str, alone: int) -> int:
    """Return MegaScale's variable, or ``alone`` where this process has all slices."""
    apart = os.environ.get("MEGASCALE_COORDINATOR_ADDRESS")
    return int(os.environ.get(f"MEGASCALE_{name}") or alone) if apart else alone


def _show_pci_devices(hardware: Any) -> None:
    """torch_tpu counts chips, and knows their generation, by the PCI devices."""
    device = os.environ["VIRTUAL_TPU_PCI"]
    name, bounds = hardware._PCI_DEVICE_ID_TO_NAME, hardware._TOPOLOGY_BY_TPU_PCI_DEVICE_ID
    hardware.get_tpu_device_name = lambda: name[device]
    hardware._scan_pci_tpus = lambda: (_chips(), bounds[device])


def _chips() -> int:
    return int(os.environ["VIRTUAL_TPU_CHIPS"])
