"""Who is late: each process that the others wait for is judged by what it does, apart from them."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from harness.lanes.virtual.executor.activity import Activity, ActivityState, Threads

LOOK = 0.5  # seconds between two looks
_SECONDS = 20.0


def deadline_of(environment: Mapping[str, str]) -> float:
    """Return the seconds that the others may be let wait."""
    return float(environment.get("VIRTUAL_TPU_DEADLINE") or _SECONDS)


@dataclass
class _Process:
    """Process that others wait for."""

    activity: Activity
    moved: float  # when it was last seen to work, or the others began to wait for it
    stopped: float | None = None  # since when a signal has it stopped


class Watch:
    """Knows who has let others wait, and for how long.

    Attributes:
        deadline: seconds without a move after which a job is late.
    """

    def __init__(self) -> None:
        self.deadline = deadline_of(os.environ)
        self._looked = time.monotonic()
        self._processes: dict[int, _Process] = {}
        self._launches: Threads | None = None
        self._launched = self._began = 0.0

    def moved(self) -> None:
        """Note that a program was queued, started or ended."""
        self._launched = time.monotonic()
        self._began = self._began and self._launched

    @property
    def is_due(self) -> bool:
        """Return whether the last look at the processes is long enough ago to look again."""
        return time.monotonic() - self._looked >= LOOK

    def look(
        self, awaited: Mapping[int, float], *, ranks: Collection[int], waits: bool, runs: bool
    ) -> None:
        """See what those that others wait for have done since the last look.

        Args:
            awaited: the processes, each with the time at which it last said something.
            ranks: the processes of all ranks.
            waits: whether anybody waits for anything.
            runs: whether a program runs, for which they wait as well.
        """
        now = time.monotonic()
        passed, self._looked = now - self._looked, now
        self._processes = {
            pid: self._processes.get(pid) or _Process(Activity(pid), now) for pid in awaited
        }
        for pid, process in self._processes.items():
            process.moved = max(process.moved, awaited[pid])
            state = process.activity.look({*ranks, os.getpid()})
            if state in (ActivityState.WORKS, ActivityState.GONE):
                process.moved = now
            elif state == ActivityState.WAITS_FOR_MACHINE:
                process.moved += passed
            process.stopped = (process.stopped or now) if state == ActivityState.STOPPED else None
        self._look_at_launches(now, runs=runs)
        if not waits:
            self._began = 0.0
        elif not self._began:
            self._began = now

    def _look_at_launches(self, now: float, *, runs: bool) -> None:
        """See whether the devices have computed, for which this process has threads."""
        if not runs:
            self._launches = None
        elif self._launches is None:
            self._launches, self._launched = Threads(os.getpid()), now
        elif self._launches.work():
            self._launched = now

    @property
    def stopped(self) -> list[int]:
        """The processes that a signal has stopped for as long as the deadline."""
        return [
            pid
            for pid, process in self._processes.items()
            if process.stopped is not None and self._looked - process.stopped >= self.deadline
        ]

    @property
    def is_late(self) -> bool:
        """Return whether all that others wait for have done nothing for as long as the deadline."""
        if self.stopped:
            return True
        moved = [process.moved for process in self._processes.values()]
        if self._launches is not None:
            moved.append(self._launched)
        if not moved and self._began:
            moved = [self._began]
        return bool(moved) and self._looked - max(moved) >= self.deadline
