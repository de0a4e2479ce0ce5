"""The processes of a job that are no ranks yet."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from harness.lanes.virtual.executor.activity import process_stat


def processes_without_rank(ranks: Collection[int]) -> list[int]:
    """Return the processes of this one's job that are none of ``ranks``, nor this one.

    They have the job in the environment that they were started with, or were forked from the same
    process as a rank: the variables that a forked process sets are not seen from outside.
    """
    job = f"XLA_HARNESS_JOB={os.environ.get('XLA_HARNESS_JOB')}".encode()
    forked = {family for pid in ranks if (family := _family(pid)) is not None}
    return [
        pid
        for pid in _processes()
        if pid not in ranks
        and pid != os.getpid()
        and (job in _read(pid, "environ").split(b"\0") or _family(pid) in forked)
    ]


def rank_of(pid: int) -> str:
    """Return the rank that a process was started as; "" if its environment does not say it."""
    variables = _read(pid, "environ").split(b"\0")
    numbers = (
        variable.removeprefix(b"RANK=") for variable in variables if variable.startswith(b"RANK=")
    )
    return next(numbers, b"").decode(errors="replace")


def _family(pid: int) -> tuple[int, bytes] | None:
    """Return a process's parent and command, which what is forked from there shares."""
    stat, command = process_stat(pid), _read(pid, "cmdline")
    return (stat.parent, command) if stat is not None and command else None


def _processes() -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            yield int(entry.name)


def _read(pid: int, name: str) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return b""
