"""Finds and ends what processes of ours have left behind; needs ``libc.adopt_orphans``."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path


def children() -> set[int]:
    """Direct children of this process, zombies and adopted orphans included."""
    pids: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        pids.update(map(int, (task / "children").read_text().split()))
    return pids


def kill_orphans(others: set[int]) -> None:
    """Kill all children but the others; each death may bring its own children to us."""
    while orphans := children() - others:
        for orphan in orphans:
            with suppress(ProcessLookupError):
                os.kill(orphan, signal.SIGKILL)
            os.waitpid(orphan, 0)
