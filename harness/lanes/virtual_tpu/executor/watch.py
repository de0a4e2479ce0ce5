"""Whether a job still moves: a program that starts or ends does, and so does any use of a CPU.

A process that a launcher has started imports its framework first, which takes a loaded machine
longer than any deadline for the others. As long as ranks are missing, such processes count too.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from harness.lanes.virtual_tpu.executor.ranks import Rank, cpu_seconds, is_runnable

LOOK = 0.5  # seconds between two looks
_SECONDS = 20.0
_IDLE = 0.02  # of a core: below it a process does nothing


class Watch:
    """Knows when a job last moved.

    Attributes:
        deadline: seconds without a move after which the job is late.
    """

    def __init__(self) -> None:
        self.deadline = float(os.environ.get("VIRTUAL_TPU_DEADLINE") or _SECONDS)
        self._moved = self._looked = time.monotonic()
        self._worked = 0.0
        self._starting: dict[int, float] = {}  # CPU time of processes that are no ranks yet

    def moved(self) -> None:
        """A program was queued, or has ended."""
        self._moved = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether the last look is so long ago that there is something to see."""
        return time.monotonic() - self._looked >= LOOK

    def look(self, ranks: Collection[Rank], *, busy: bool, complete: bool) -> None:
        """See what the ranks and this process have done since the last look.

        Only a busy job can be late. It is complete when no rank is missing.
        """
        now = time.monotonic()
        worked = sum(rank.seconds for rank in ranks) + time.process_time()
        idle = _IDLE * (now - self._looked)
        moves = not busy or worked - self._worked > idle or _waits(ranks)
        if moves or (not complete and self._is_starting(ranks, idle)):
            self._moved = now
        self._worked, self._looked = worked, now

    def _is_starting(self, ranks: Collection[Rank], idle: float) -> bool:
        """Whether a process of the job that is no rank yet has worked since the last look."""
        before = self._starting
        known = {rank.pid for rank in ranks}
        self._starting = {pid: cpu_seconds(pid) for pid in _processes() if pid not in known}
        return any(now - before.get(pid, 0.0) > idle for pid, now in self._starting.items())

    @property
    def is_late(self) -> bool:
        """Whether it has not moved for as long as the deadline, at the last look."""
        return self._looked - self._moved >= self.deadline


def _waits(ranks: Collection[Rank]) -> bool:
    """Whether a process of the job waits for nothing but a CPU."""
    return any(rank.is_runnable for rank in ranks) or is_runnable(
        os.getpid(), but=threading.get_native_id()
    )


def _processes() -> Iterator[int]:
    """The other processes that were started with this one's job in their environment."""
    job = f"XLA_HARNESS_JOB={os.environ.get('XLA_HARNESS_JOB')}".encode()
    for environment in Path("/proc").glob("[0-9]*/environ"):
        pid = int(environment.parent.name)
        with suppress(OSError):
            if pid != os.getpid() and job in environment.read_bytes().split(b"\0"):
                yield pid
