"""Lets the plugin read where a thread is in Python without the GIL, where it reads that rightly."""

from __future__ import annotations

import atexit
import ctypes
import sys
import sysconfig
import traceback

from harness.lanes.virtual.sites import LIBRARIES, RUNNERS


def attach(library: ctypes.CDLL) -> None:
    """Have the plugin read frames itself until the interpreter ends, if it can.

    It knows the layouts of some releases of CPython. A thread of another one is asked for its
    lines by ``process.site``, which needs the GIL.
    """
    if sys.implementation.name != "cpython" or _is_special_build():
        return
    folders = ("\n".join(names).encode() for names in (LIBRARIES, RUNNERS))
    library.virtual_tpu_read_frames(sys.version_info.minor, *folders)
    atexit.register(library.virtual_tpu_leave_frames)
    if not reads_rightly(library):
        library.virtual_tpu_leave_frames()


def _is_special_build() -> bool:
    """Return whether objects have other fields than in the usual build."""
    return hasattr(sys, "gettotalrefcount") or bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def reads_rightly(library: ctypes.CDLL) -> bool:
    """Return whether the plugin reads the caller's frames as Python says they are."""
    library.virtual_tpu_frames.restype = ctypes.c_void_p
    address, stack = library.virtual_tpu_frames(), list(traceback.walk_stack(sys._getframe()))
    if address is None:
        return False
    text = ctypes.string_at(address).decode()
    libc = ctypes.CDLL(None)
    libc.free(ctypes.c_void_p(address))
    lines = (f"{f.f_code.co_filename}:{line} {f.f_code.co_name}\n" for f, line in stack)
    return text == "".join(lines)
