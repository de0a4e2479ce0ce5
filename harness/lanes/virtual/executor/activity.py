"""Decide whether a process works, by its threads' use of a core while they do not wait for one.

A loaded machine makes a thread wait for a core, and the kernel counts that time apart. A thread
that computes never sleeps, be its share of the core as small as it may; one that polls, or keeps a
connection alive, sleeps nearly always.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

# Share of its time awake from which a thread works. A main thread that waits for a collective, a
# lock or a message uses nothing; one that polls every 10 ms uses half a percent.
_MAIN = 0.03
_OTHERS = 0.2  # of all other threads together: those of frameworks send heartbeats
_LEAST = 0.01  # of the time between two looks: what uses less is never taken for work
_STARVED = 0.1  # of it: who slept less, and used next to nothing, waited for a core


class ActivityState(Enum):
    """State of a process: what it has done between two looks."""

    WORKS = "works"
    WAITS_FOR_MACHINE = "waits for a core or a disk"
    IDLE = "idle"
    STOPPED = "stopped by a signal"
    GONE = "gone"


@dataclass(frozen=True)
class _Times:
    """Nanoseconds that a thread has run, and waited for a core."""

    ran: int = 0
    waited: int = 0


class Activity:
    """Looks at one process again and again.

    Args:
        pid: the process.
        main: the share of its time from which its main thread works.
        others: the same for all other threads together.
    """

    def __init__(self, pid: int, main: float = _MAIN, others: float = _OTHERS) -> None:
        self.pid = pid
        self._main, self._others = main, others
        self._threads: Mapping[int, _Times] | None = None
        self._children: dict[int, Activity] = {}
        self._looked = 0

    def look(self, but: Collection[int] = ()) -> ActivityState:
        """Return what the process has done since the last look; at the first one it works.

        Its child processes count as further threads, except for ``but`` and their children.
        """
        now, stat = time.monotonic_ns(), process_stat(self.pid)
        before, threads = self._threads, dict(_threads(self.pid))
        seconds, self._looked, self._threads = now - self._looked, now, threads
        if stat is None or not threads:
            return ActivityState.GONE
        if before is None:
            self._look_at_children(but)
            return ActivityState.WORKS
        if stat.state == "T":
            return ActivityState.STOPPED
        own = {
            thread: _share(times, before.get(thread, _Times()), seconds)
            for thread, times in threads.items()
        }
        main = own.pop(self.pid, 0.0)
        works = main >= self._main or sum(own.values()) >= self._others
        if self._look_at_children(but) or works:
            return ActivityState.WORKS
        past = before.get(self.pid, _Times())
        if stat.state == "D" or _is_starved(threads[self.pid], past, seconds, stat.state):
            return ActivityState.WAITS_FOR_MACHINE
        return ActivityState.IDLE

    def _look_at_children(self, but: Collection[int]) -> bool:
        """Return whether a child process works."""
        children = [pid for pid in _children(self.pid) if pid not in but]
        self._children = {
            pid: self._children.get(pid) or Activity(pid, self._others, self._others)
            for pid in children
        }
        states = [child.look(but) for child in self._children.values()]
        return ActivityState.WORKS in states


class Threads:
    """Looks at all threads of one process except for its main thread."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before: dict[int, _Times] = {}
        self._looked = time.monotonic_ns()

    def work(self) -> bool:
        """Return whether they have worked since the last look."""
        now, threads = time.monotonic_ns(), dict(_threads(self._pid))
        threads.pop(self._pid, None)
        seconds, before = now - self._looked, self._before
        self._looked, self._before = now, threads
        shares = (
            _share(times, before.get(thread, _Times()), seconds)
            for thread, times in threads.items()
        )
        return sum(shares) >= _MAIN


@dataclass(frozen=True)
class ProcessStat:
    """State (such as ``R`` or ``T``) and parent of a process, from /proc/PID/stat."""

    state: str
    parent: int


def process_stat(pid: int) -> ProcessStat | None:
    """Return the state of a process; None if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    state, parent, *_ = text.rpartition(") ")[2].split()
    return ProcessStat(state, int(parent))


def _share(now: _Times, before: _Times, nanoseconds: int) -> float:
    """Return the share of the time in which a thread did not wait for a core that it had one."""
    ran = now.ran - before.ran
    if ran < _LEAST * nanoseconds:
        return 0.0
    return ran / max(ran, nanoseconds - (now.waited - before.waited))


def _is_starved(now: _Times, before: _Times, nanoseconds: int, state: str) -> bool:
    """Return whether a thread may not have run for want of a core.

    How long it waits now, the kernel adds at the end of that.
    """
    ran, waited = now.ran - before.ran, now.waited - before.waited
    slept = nanoseconds - ran - waited
    return slept < _STARVED * nanoseconds or (state == "R" and ran < _LEAST * nanoseconds)


def _threads(pid: int) -> Iterator[tuple[int, _Times]]:
    for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with suppress(OSError, ValueError):
            ran, waited, _ = file.read_bytes().split()
            yield int(file.parent.name), _Times(int(ran), int(waited))


def _children(pid: int) -> Iterator[int]:
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            yield from map(int, file.read_bytes().split())
