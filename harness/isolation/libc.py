"""The few C library calls that Python does not offer."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_PTRACER = 0x59616D61
_SA_ONSTACK, _SA_NODEFER, _SA_RESETHAND = 0x08000000, 0x40000000, 0x80000000
_IOLBF = 1
_MADV_COLLAPSE = 25
_HUGE_PAGE = 2 << 20

_libc = ctypes.CDLL(None, use_errno=True)


class _LoadedObject(ctypes.Structure):
    """The first fields of dl_phdr_info, which all platforms have."""

    _fields_ = (
        ("address", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("headers", ctypes.c_void_p),
        ("count", ctypes.c_uint16),
        ("adds", ctypes.c_ulonglong),
    )


def _note_adds(info: Any, size: int, adds: Any) -> int:
    del size
    adds[0] = info.contents.adds
    return 1  # no other object: the number is the same in each


_NOTE_ADDS = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(_LoadedObject), ctypes.c_size_t, ctypes.POINTER(ctypes.c_ulonglong)
)(_note_adds)


def count_loads() -> int:
    """Return how many shared objects this process has loaded so far, also those unloaded since."""
    adds = ctypes.c_ulonglong()
    _libc.dl_iterate_phdr(_NOTE_ADDS, ctypes.byref(adds))
    return adds.value


class _SigAction(ctypes.Structure):
    """glibc's ``struct sigaction`` on 64-bit Linux."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0 and option != _PR_SET_PTRACER:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), f"prctl({option})")


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent died."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Be killed when the parent dies; exits at once if it already has."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


class DieWithParent:
    """Callable for ``preexec_fn``: ends the new process with the thread that started it."""

    def __init__(self) -> None:
        self._parent = os.getpid()

    def __call__(self) -> None:
        die_with_parent(self._parent)


def allow_tracing_by(pid: int) -> None:
    """Let that process and its children read this one's stacks where Yama would forbid it."""
    _prctl(_PR_SET_PTRACER, pid)  # fails with EINVAL without Yama, where nothing is forbidden


def pause_on(signals: tuple[signal.Signals, ...]) -> None:
    """Wait in ``pause(2)`` at the first of each of ``signals``; die at the second.

    Installed below faulthandler, which hands a fatal signal on to the handler that stood before
    it: the crashed thread then keeps its stack until somebody has read it.
    """
    action = _SigAction()
    action.handler = ctypes.cast(_libc.pause, ctypes.c_void_p).value
    action.flags = ctypes.c_int(_SA_ONSTACK | _SA_NODEFER | _SA_RESETHAND).value
    for number in signals:
        _libc.sigaction(int(number), ctypes.byref(action), None)


def line_buffer_stdout() -> None:
    """Have C's ``printf`` written line by line, so that a crash loses no line."""
    stdout = ctypes.c_void_p.in_dll(_libc, "stdout")
    _libc.setvbuf(stdout, None, _IOLBF, ctypes.c_size_t(0))


def use_huge_pages() -> None:
    """Gather this process's private memory in huge pages, as far as the kernel is able to.

    A fork copies, and an exit tears down, one page table entry a page: with 2 MiB pages there are
    far fewer. A kernel before 6.1, or one without huge pages, refuses, and nothing changes.
    """
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, access, _, _, inode, *_ = line.split()
        start, end = (int(address, 16) for address in span.split("-"))
        start = -(-start // _HUGE_PAGE) * _HUGE_PAGE
        length = end // _HUGE_PAGE * _HUGE_PAGE - start
        if access.startswith("rw") and inode == "0" and length > 0:
            _libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), _MADV_COLLAPSE)


def flush_all() -> None:
    """Write out every C stream."""
    _libc.fflush(None)
