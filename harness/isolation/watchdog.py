"""Ends what a run has started when the run itself was killed and can't.

A case's own process dies with pytest; what it has started does not. Every process that a case
starts is known by a token: in its environment, or, as long as it is a mere fork, by memory that it
has in common with the case. A small process beside pytest waits for pytest's death and then kills
them. If that was killed, too, the next run finds them by the token, which names the dead owner.
"""

from __future__ import annotations

import fcntl
import gc
import mmap
import os
import secrets
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from harness.isolation.supervisor import fork
from harness.scratch import remove

VARIABLE = (
    "XLA_HARNESS_RUN"  # the tokens of the runs that a process belongs to, the outermost first
)
_SECONDS = 10.0  # for all: a process may start another one while it is being found
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Watchdog:
    """Watches over one run, for as long as this process lives or until ``close``."""

    def __init__(self, folder: Path | None = None) -> None:
        """Kill what dead runs have left, and start watching. ``folder`` ends with this run."""
        kill_abandoned()
        owner = os.getpid()
        self.token = f"{_namespace()}.{owner}.{_start_time(owner)}.{secrets.token_hex(8)}"
        self._memory = os.memfd_create(self._name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self._memory, mmap.PAGESIZE)
        # A case may cut every file that it has a descriptor of, and the next one maps this, too.
        fcntl.fcntl(self._memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
        handle = os.pidfd_open(owner)
        self._pid = fork()
        if self._pid == 0:
            _watch(handle, self, folder)
        os.close(handle)

    @property
    def environment(self) -> dict[str, str]:
        """The variable that marks the processes of the run."""
        outer = os.environ.get(VARIABLE)
        return {VARIABLE: f"{outer},{self.token}" if outer else self.token}

    def mark(self) -> None:
        """Mark this forked process, and all that it forks."""
        _marks.append(mmap.mmap(self._memory, mmap.PAGESIZE))
        os.close(self._memory)

    def close(self) -> None:
        """End the watching."""
        os.kill(self._pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        os.close(self._memory)

    def is_of_run(self, process: Path) -> bool:
        """Return whether a folder of /proc is that of a process of the run."""
        if self.token in _tokens(process):
            return True
        try:
            return self._name in (process / "maps").read_text(errors="replace")
        except OSError:
            return False

    @property
    def _name(self) -> str:
        return f"xla-harness-run-{self.token}"


_marks: list[mmap.mmap] = []  # kept, since memory is unmapped with its object


def kill_abandoned() -> None:
    """Kill the processes of this user that were started by runs whose own process is dead."""
    here = _namespace()
    owners: dict[str, bool] = {}

    def is_abandoned(process: Path) -> bool:
        for token in _tokens(process):
            if token not in owners:
                owners[token] = _is_dead(token, here)
            if owners[token]:
                return True
        return False

    _kill(is_abandoned)


def _start_time(pid: int) -> str:
    """Return when a process started, in ticks since the machine did; "" if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""
    fields = text.rpartition(")")[2].split()  # behind the name, which may hold anything
    return "" if fields[0] == "Z" else fields[19]


def _watch(owner: int, watchdog: Watchdog, folder: Path | None) -> NoReturn:
    """Wait until the owner has died, which may take days, and end its processes."""
    try:
        os.setsid()
        gc.disable()  # it would copy the memory that is the owner's, too
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        null = os.open(os.devnull, os.O_RDWR)
        for target in range(3):
            os.dup2(null, target)
        os.closerange(3, owner)
        os.closerange(owner + 1, os.sysconf("SC_OPEN_MAX"))
        select.select([owner], [], [])
        _kill(watchdog.is_of_run)
        if folder is not None:
            remove(folder)
    finally:
        os._exit(0)


def _kill(condition: Callable[[Path], bool]) -> None:
    """Kill this user's processes for which the condition holds, until there is none."""
    end = time.monotonic() + _SECONDS
    while time.monotonic() < end:
        processes = [process for process in Path("/proc").glob("[0-9]*") if _is_mine(process)]
        killed = [_kill_if(condition, process) for process in processes]
        if not any(killed):
            return


def _kill_if(condition: Callable[[Path], bool], process: Path) -> bool:
    if not condition(process):
        return False
    try:
        handle = os.pidfd_open(int(process.name))
    except OSError:
        return False
    try:  # looked at again: the number may have been another process's a moment ago
        if not condition(process):
            return False
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        select.select([handle], [], [], 1.0)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def _is_mine(process: Path) -> bool:
    try:
        return process.stat().st_uid == os.geteuid() and int(process.name) != os.getpid()
    except OSError:
        return False


def _tokens(process: Path) -> list[str]:
    try:
        variables = (process / "environ").read_bytes().split(b"\0")
    except OSError:  # it has ended, or is not to be looked at
        return []
    name = f"{VARIABLE}=".encode()
    values = (each.removeprefix(name) for each in variables if each.startswith(name))
    return [token for value in values for token in value.decode(errors="replace").split(",")]


def _is_dead(token: str, namespace: str) -> bool:
    """Return whether the process is dead that gave out the token, as far as that can be seen."""
    match token.split("."):
        case [there, pid, started, _] if there == namespace and pid.isdecimal():
            return _start_time(int(pid)) != started
    return False


def _namespace() -> str:
    """Return the name of this process's namespace of process numbers."""
    return str(Path("/proc/self/ns/pid").stat().st_ino)
