"""Processes that never begin: they wait for more than there are, or for one that does not come.

Before its first client a process of a job may wait in its framework's own rendezvous, of which the
lane knows nothing. When all processes are idle, their Python stacks say who waits there, and for
how many.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.lanes.virtual.executor.activity import Activity, ActivityState
from harness.lanes.virtual.executor.folding import listed, ranks_named, verb

_SECONDS = 10  # for py-spy
# The function of a framework in which processes wait for all others, and its argument that says how
# many they are.
_RENDEZVOUS = (
    ("jax.distributed.initialize", r"initialize \(jax/_src/distributed\.py:\d+\)", "num_processes"),
    (
        "torch.distributed.init_process_group",
        r"(?:init_process_group|_create_c10d_store|_\w+_handler) \(torch/distributed/\S+\)",
        "world_size",
    ),
)


@dataclass(frozen=True)
class MeetingPlace:
    """Place where processes wait for each other; ``count`` of them, 0 if that is unknown."""

    name: str
    count: int


class Gathering:
    """Looks at the processes of a job until they have all come.

    Args:
        deadline: seconds without work after which they are late.
    """

    def __init__(self, deadline: float) -> None:
        self._deadline, self._moved = deadline, time.monotonic()
        self._looks: dict[int, Activity] = {}

    def why_late(self, processes: Mapping[int, int]) -> str:
        """Return why the processes do not begin, in words; "" as long as they may.

        Args:
            processes: the process ID of each rank.
        """
        for pid in processes.values():
            state = self._looks.setdefault(pid, Activity(pid)).look()
            if state not in (ActivityState.IDLE, ActivityState.STOPPED):
                self._moved = time.monotonic()
        if time.monotonic() - self._moved < self._deadline:
            return ""
        self._moved = time.monotonic()  # not to read the stacks of all at every look
        waits = {rank: rendezvous(pid) for rank, pid in processes.items()}
        return explanation(waits, self._deadline)


def explanation(waits: Mapping[int, MeetingPlace | None], deadline: float) -> str:
    """Return why ranks that do nothing do not begin; "" if none of them waits for the others."""
    there = {rank: wait for rank, wait in waits.items() if wait is not None}
    if not there:
        return ""
    name = next(iter(there.values())).name
    who = f"{ranks_named(there)} {verb(there, 'waits', 'wait')} in {name}"
    counts = {wait.count for wait in there.values()} - {0, len(waits)}
    if counts:
        return (
            f"{len(waits)} processes were started, and {who} for {listed(counts)}, for "
            f"{deadline:g} s: start as many as the script expects, or let it expect as many"
        )
    late = [rank for rank in waits if rank not in there]
    if not late:
        return ""
    return f"{ranks_named(late)} {verb(late, 'does', 'do')} nothing, for {deadline:g} s, and {who}"


def rendezvous(pid: int) -> MeetingPlace | None:
    """Return where a process waits for the others; None if it does not, or does not say it."""
    beside = Path(sysconfig.get_path("scripts"), "py-spy")
    program = str(beside) if beside.exists() else shutil.which("py-spy")
    if program is None:
        return None
    command = [program, "dump", "--locals", "--pid", str(pid)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return None
    return rendezvous_in(done.stdout)


def rendezvous_in(dump: str) -> MeetingPlace | None:
    """Return the rendezvous that a dump of py-spy, with the values of variables, is in."""
    for name, frame, argument in _RENDEZVOUS:
        # From that frame on: variables of the frames that it was called from count, too.
        if (match := re.search(frame, dump)) is not None:
            count = re.search(rf"^\s+{argument}: (\d+)$", dump[match.start() :], re.MULTILINE)
            return MeetingPlace(name, int(count[1]) if count else 0)
    return None
