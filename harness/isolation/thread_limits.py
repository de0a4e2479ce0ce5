"""Threads and processes that can't be started, and how many there may be."""

from __future__ import annotations

import errno
import os
import re
import resource
from collections.abc import Iterator
from pathlib import Path

from harness.isolation import cgroups

_NO_THREAD = re.compile(
    r"can't start new thread"  # Python
    r"|pthread_create\b[^\n]{0,60}\bfail"  # XLA, LLVM, OpenBLAS, gRPC
    r"|Thread creation failed|resources for OMP thread"  # OpenMP of GCC and of LLVM
    r"|std::system_error'\s+what\(\):\s+Resource temporarily unavailable"  # std::thread
    r"|[Ff]ork(?:: retry)?: Resource temporarily unavailable|Cannot fork"  # shells
)
# Python's error for a fork is also the one of a lock or a socket that would block.
_WOULD_BLOCK = f"[Errno {errno.EAGAIN}] {os.strerror(errno.EAGAIN)}"
_FORKS = re.compile(r"\b(?:_?fork_exec|os\.fork|forkpty|posix_spawnp?)\(")


def out_of_threads_text(text: str) -> bool:
    """Return whether an error text says that a thread or a process could not be started."""
    return _NO_THREAD.search(text) is not None


def out_of_processes_traceback(message: str, text: str) -> bool:
    """Return whether Python's error ``message``, with traceback ``text``, is one of a fork."""
    return _WOULD_BLOCK in message and _FORKS.search(text) is not None


def out_of_threads() -> str:
    """Say that threads or processes have run out, and the smallest limit on their number."""
    limit, name = min(_limits(), default=(0, ""))
    most = f"at most {limit} by {name}; " if name else ""
    return f"out of threads or processes ({most}their stacks count as memory)"


def _limits() -> Iterator[tuple[int, str]]:
    for name in ("threads-max", "pid_max"):
        yield from _limit(Path("/proc/sys/kernel", name), f"kernel.{name}")
    most, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if most != resource.RLIM_INFINITY and os.geteuid() != 0:  # root may have more
        yield most, "ulimit -u"
    for folder in cgroups.folders("pids"):
        for above in cgroups.folders_above(folder):
            yield from _limit(above / "pids.max", str(above / "pids.max"))


def _limit(file: Path, name: str) -> Iterator[tuple[int, str]]:
    try:
        text = file.read_text(encoding="ascii").strip()
    except OSError:
        return
    if text.isdecimal():  # and not "max"
        yield int(text), name
