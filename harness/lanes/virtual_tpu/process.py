"""The Python half of the plugin, in each process that loads it; the plugin itself calls it."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import traceback
from functools import cache
from typing import Any

import wrapt

from harness.lanes.virtual_tpu import pallas

_RUNNERS = ("/_pytest/", "/pluggy/", "/harness/isolation/", "/harness/lanes/virtual_tpu/")
_LIBRARIES = ("/site-packages/", "/lib/python3", "<frozen", "/harness/")
_DEEPEST = 12  # frames of a stack that are told


@cache
def start() -> str:
    """Make this process ready for a virtual TPU; starts no client and imports no framework."""
    pallas.attach(ctypes.CDLL(os.environ["TPU_LIBRARY_PATH"]))
    pallas.record_kernels()
    prepare_frameworks()
    return ""


@cache
def prepare_frameworks() -> None:
    """Let both frameworks find the chips of the virtual TPU when they are imported."""
    wrapt.register_post_import_hook(_show_chips, "torch_xla._internal.tpu")
    wrapt.register_post_import_hook(_is_tpu_machine, "jax._src.cloud_tpu_init")


def stack() -> str:
    """This thread's Python stack from the test on, the innermost call last."""
    frames = traceback.extract_stack()[:-1]
    own = [n for n, frame in enumerate(frames) if any(r in frame.filename for r in _RUNNERS)]
    return "".join(traceback.format_list(frames[max(own, default=-1) + 1 :]))


def stacks() -> str:
    """Where each thread that runs Python is, the main thread first."""
    frames = sys._current_frames()
    main = threading.main_thread().ident
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    own = threading.get_ident()
    told = []
    for ident in sorted(frames, key=lambda one: one != main):
        if ident == own or ident not in names:
            continue
        told.append(f"  thread {names[ident]}:\n")
        told += traceback.format_list(traceback.extract_stack(frames[ident])[-_DEEPEST:])
    return "".join(told)


def site() -> str:
    """The user's line that this thread is in, or the main thread where that has no Python."""
    frame = sys._getframe(1) if sys._getframe().f_back else None
    if frame is None:
        main = threading.main_thread().ident
        frame = sys._current_frames().get(main) if main else None
    innermost = frame
    while frame is not None and any(one in frame.f_code.co_filename for one in _LIBRARIES):
        frame = frame.f_back
    found = frame or innermost
    if found is None:
        return ""
    return f"{found.f_code.co_filename}:{found.f_lineno} {found.f_code.co_name}"


def _show_chips(tpu: Any) -> None:
    """torch_xla counts chips among the PCI devices, where a virtual TPU has none."""
    tpu.num_available_chips = lambda: int(os.environ["VIRTUAL_TPU_CHIPS"])


def _is_tpu_machine(init: Any) -> None:
    """JAX lowers kernels for the libtpu that it sees only where it found chips on the PCI bus."""
    init.running_in_cloud_tpu_vm = True
