"""Whether a job still moves: a program that starts or ends does, and so does any use of a CPU."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection

from harness.lanes.virtual_tpu.executor.ranks import Rank, is_runnable

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

    def moved(self) -> None:
        """A program was queued, or has ended."""
        self._moved = time.monotonic()

    def looks(self, ranks: Collection[Rank], *, busy: bool) -> bool:
        """See what the ranks and this process have done; False if there is nothing to judge.

        Only a busy job can be late, and two looks have some time between them.
        """
        now = time.monotonic()
        if now - self._looked < LOOK:
            return False
        worked = sum(rank.seconds for rank in ranks) + time.process_time()
        if not busy or worked - self._worked > _IDLE * (now - self._looked) or _waits(ranks):
            self._moved = now
        self._worked, self._looked = worked, now
        return busy

    @property
    def is_late(self) -> bool:
        """Whether it has not moved for as long as the deadline, at the last look."""
        return self._looked - self._moved >= self.deadline


def _waits(ranks: Collection[Rank]) -> bool:
    """Whether a process of the job waits for nothing but a CPU."""
    return any(rank.is_runnable for rank in ranks) or is_runnable(
        os.getpid(), but=threading.get_native_id()
    )
