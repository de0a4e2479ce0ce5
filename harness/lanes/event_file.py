"""A log for events that no case can delete or replace, with a count of what was written to it."""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from harness.lanes.events import LEDGER, VARIABLE, WRITTEN_VARIABLE, Events, read_events

FOLDER_VARIABLE = "XLA_HARNESS_EVENTS_FOLDER"  # names a folder in which the logs stay


class EventFile:
    """Event log in memory: a full disk does not affect it, and nobody can truncate it.

    Other processes open it, and the ledger of what they wrote, by the path of this process's
    descriptors. Where ``XLA_HARNESS_EVENTS_FOLDER`` names a folder, the log is a file that stays
    there.
    """

    def __init__(self) -> None:
        self._log = _open()
        self._ledger = _memory("xla-harness-events-written")
        self._inodes = {each: os.fstat(each).st_ino for each in (self._log, self._ledger)}
        os.ftruncate(self._ledger, mmap.PAGESIZE)
        _fix(self._ledger, fcntl.F_SEAL_GROW)
        self._counts = mmap.mmap(self._ledger, mmap.PAGESIZE)
        LEDGER.pack_into(self._counts, 0, self._inodes[self._log], 0, 0)

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables by which other processes know the log."""
        descriptors = f"/proc/{os.getpid()}/fd"
        return {
            VARIABLE: f"{descriptors}/{self._log}",
            WRITTEN_VARIABLE: f"{descriptors}/{self._ledger}",
        }

    def read(self) -> Events:
        """Return all events so far; ``damage`` says what is missing from them."""
        if not self._has(self._log):  # without isolation a test may close every descriptor
            return Events(damage="it was closed")
        events, size = read_events(self._log), os.fstat(self._log).st_size
        inode, written, error = LEDGER.unpack_from(self._counts)
        if error:
            why = f"an event could not be written: {os.strerror(error)}"
        elif inode != self._inodes[self._log] or size < written:
            why = f"it was cut: {written:,} bytes were written, {size:,} are there"
        else:
            return events
        return replace(events, damage=why)

    def close(self) -> None:
        """Close this process's descriptors. A forked process uses the paths, and closes its own."""
        self._counts.close()
        for descriptor in self._inodes:
            if self._has(descriptor):
                os.close(descriptor)

    def _has(self, descriptor: int) -> bool:
        """Return whether the descriptor is still the one that was opened here."""
        try:
            return os.fstat(descriptor).st_ino == self._inodes[descriptor]
        except OSError:
            return False


def _open() -> int:
    if folder := os.environ.get(FOLDER_VARIABLE):
        path = Path(folder, f"{time.monotonic_ns()}.jsonl")
        with suppress(OSError):  # no room there
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    log = _memory("xla-harness-events")
    _fix(log)
    return log


def _fix(descriptor: int, more: int = 0) -> None:
    """Let nobody shorten the file, nor undo that."""
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL | more
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)


def _memory(name: str) -> int:
    return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
