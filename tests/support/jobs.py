"""What there is of a job of several processes: the process that runs its programs, its sockets."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

EXECUTOR = b"harness.lanes.virtual.executor"


def executors(job: str) -> list[int]:
    """The executors that run for a job."""
    processes = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            is_executor = EXECUTOR in (process / "cmdline").read_bytes()
            if is_executor and job.encode() in (process / "environ").read_bytes():
                processes.append(int(process.name))
    return processes


def remains(job: str) -> list[str]:
    """The lines of a job's sockets, and its executors."""
    sockets = Path("/proc/net/unix").read_text(encoding="utf-8").splitlines()
    named = [line for line in sockets if f"@xla-harness-{job}" in line]
    return named + [str(executor) for executor in executors(job)]


def assert_none(job: str) -> None:
    """Nothing of a job that has ended stays behind: neither its executor nor its address.

    The memory that its processes share has no name, and is gone with the last of them.
    """
    end = time.monotonic() + 20
    while (left := remains(job)) and time.monotonic() < end:
        time.sleep(0.1)
    assert left == []
