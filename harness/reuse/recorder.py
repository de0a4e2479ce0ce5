"""Record which files a process and its forks use, from Python's audit events."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib.util import source_from_cache
from pathlib import Path
from typing import Any

from harness.isolation import libc

# The first word of a record: what was done with the path, or what happened besides.
READ, WROTE, LISTED, FORKED, UNTRACKED = "read", "wrote", "listed", "forked", "untracked"
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_LISTS = frozenset({"os.listdir", "os.scandir"})
_FORKS = frozenset({"os.fork", "os.forkpty"})
# What another program reads is not recorded, and neither is what another machine answers.
_STARTS = frozenset({"subprocess.Popen", "os.posix_spawn", "os.exec", "os.system"})
_CONNECTS = frozenset({"socket.connect", "socket.getaddrinfo"})
_LOCAL = ("127.", "localhost", "::1", "0.0.0.0", "/")  # noqa: S104 - addresses to compare with
_IMPORTERS = frozenset({"importlib._bootstrap_external", "zipimport"})

_Act = Callable[[str, tuple[Any, ...]], str]  # returns the record of an event, or ""


class FileRecorder:
    """Record of what one process uses; its forks append to the same record.

    An audit hook stays installed until its process ends, so ``start`` can be called again.
    """

    def __init__(self) -> None:
        self._file: int | None = None
        self._known: set[str] = set()
        self._loads = 0  # of shared objects before the start
        self._is_installed = False

    def start(self) -> None:
        """Begin a new, empty record."""
        self._known = set()
        self._loads = libc.count_loads()
        self._file = os.memfd_create("files-used")
        if not self._is_installed:
            self._is_installed = True
            sys.addaudithook(self._hook())

    def stop(self) -> list[str]:
        """Return what was recorded, and record no more."""
        used = self.used()
        if self._file is not None:
            os.close(self._file)
            self._file = None
            self._known = set()  # here and not in a fork, which would copy what it frees
        return used

    def used(self) -> list[str]:
        """Return the records so far, with all native libraries if this process has loaded one."""
        if self._file is None:
            return []
        has_loaded = libc.count_loads() > self._loads
        libraries = native_libraries() if has_loaded else []
        content = os.pread(self._file, os.fstat(self._file).st_size, 0)
        lines = content.decode(errors="surrogateescape").splitlines()
        return [*dict.fromkeys(lines), *(f"{READ} {path}" for path in libraries)]

    def _hook(self) -> Callable[[str, tuple[Any, ...]], None]:
        """Return the hook: a plain function, since it is called for each ``id`` and ``getattr``."""
        act_of, record = _ACTS.get, self._record

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            if (act := act_of(event)) is not None:
                record(act, event, arguments)

        return hook

    def _record(self, act: _Act, event: str, arguments: tuple[Any, ...]) -> None:
        if self._file is None:
            return
        try:
            line = act(event, arguments)
        except (TypeError, ValueError, OSError):  # a path that is none, or no current folder
            return
        if line and line not in self._known and "\n" not in line:
            self._known.add(line)
            os.write(self._file, f"{line}\n".encode(errors="surrogateescape"))


def native_libraries() -> list[str]:
    """Return the paths of the shared libraries that this process has loaded."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape")
    paths = {line.partition("/")[2] for line in maps.splitlines() if ".so" in line}
    return sorted(f"/{path}" for path in paths if path)


def _opened(event: str, arguments: tuple[Any, ...]) -> str:
    del event
    path, _, flags = arguments
    if isinstance(path, int) or path is None:  # a descriptor, whose file was opened before
        return ""
    name = os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - a Path would take longer
    if name.endswith(".pyc"):
        name = source_from_cache(name)
    return f"{WROTE if flags & _WRITES else READ} {name}"


def _listed(event: str, arguments: tuple[Any, ...]) -> str:
    del event
    path = arguments[0]
    importer = sys._getframe(3).f_globals.get("__name__") in _IMPORTERS
    if importer or isinstance(path, int):
        return ""
    return f"{LISTED} {os.path.abspath(os.fsdecode(path or '.'))}"  # noqa: PTH100


def _forked(event: str, arguments: tuple[Any, ...]) -> str:
    del event, arguments
    return FORKED


def _started(event: str, arguments: tuple[Any, ...]) -> str:
    del arguments
    return f"{UNTRACKED} it starts another program ({event})"


def _connected(event: str, arguments: tuple[Any, ...]) -> str:
    address = arguments[1] if event == "socket.connect" else arguments[0]
    host = address[0] if isinstance(address, tuple) else address
    host = os.fsdecode(host) if isinstance(host, str | bytes) else ""
    return "" if not host or host.startswith(_LOCAL) else f"{UNTRACKED} it asks {host}"


_ACTS: dict[str, _Act] = {
    "open": _opened,
    **dict.fromkeys(_LISTS, _listed),
    **dict.fromkeys(_FORKS, _forked),
    **dict.fromkeys(_STARTS, _started),
    **dict.fromkeys(_CONNECTS, _connected),
}
