"""The Python half of the plugin, in each process that loads it; the plugin itself calls it."""

from __future__ import annotations

import ctypes
import os
import traceback
from functools import cache
from typing import Any

import wrapt

from harness.lanes.virtual_tpu import pallas

_RUNNERS = ("/_pytest/", "/pluggy/", "/harness/isolation/", "/harness/lanes/virtual_tpu/")


@cache
def start() -> str:
    """Make this process ready for a virtual TPU; starts no client and imports no framework."""
    pallas.attach(ctypes.CDLL(os.environ["TPU_LIBRARY_PATH"]))
    pallas.record_kernels()
    wrapt.register_post_import_hook(_show_chips, "torch_xla._internal.tpu")
    wrapt.register_post_import_hook(_is_tpu_machine, "jax._src.cloud_tpu_init")
    return ""


def stack() -> str:
    """This thread's Python stack from the test on, the innermost call last."""
    frames = traceback.extract_stack()[:-1]
    own = [n for n, frame in enumerate(frames) if any(r in frame.filename for r in _RUNNERS)]
    return "".join(traceback.format_list(frames[max(own, default=-1) + 1 :]))


def _show_chips(tpu: Any) -> None:
    """torch_xla counts chips among the PCI devices, where a virtual TPU has none."""
    tpu.num_available_chips = lambda: int(os.environ["VIRTUAL_TPU_CHIPS"])


def _is_tpu_machine(init: Any) -> None:
    """JAX lowers kernels for the libtpu that it sees only where it found chips on the PCI bus."""
    init.running_in_cloud_tpu_vm = True
