"""A rank as the executor knows it: its connection, its memory, and what it waits for."""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from harness.lanes.virtual_tpu.executor.programs import Program

_TICK = os.sysconf("SC_CLK_TCK")


class Memory:
    """A segment that a rank shares, mapped here."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._map = mmap.mmap(descriptor, size)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))


@dataclass
class Rank:
    """One process of the job.

    Attributes:
        number: its process index in the job.
        devices: the ids of its own devices.
    """

    connection: socket.socket
    number: int
    pid: int
    devices: tuple[int, ...]
    programs: dict[int, Program] = field(default_factory=dict)
    memory: dict[int, Memory] = field(default_factory=dict)
    stacks: str = ""

    def send(self, line: str, text: str = "") -> None:
        """Send a message; one that has gone is none the wiser."""
        with suppress(OSError):
            self.connection.send(f"{line}\n{text}".encode())

    @property
    def seconds(self) -> float:
        """CPU time that the process has used; what it had when it ended is 0."""
        fields = self._stat
        return (int(fields[11]) + int(fields[12])) / _TICK if fields else 0.0

    @property
    def is_stopped(self) -> bool:
        """Whether a signal has stopped it."""
        return self._stat[:1] == ["T"]

    @property
    def _stat(self) -> list[str]:
        try:
            text = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return []
        return text.rpartition(") ")[2].split()


@dataclass(frozen=True, eq=False)
class Execution:
    """What a rank has queued on some of its devices.

    Attributes:
        ticket: the rank's number for it.
        devices: ids of all devices of the program, in its order.
        mine: of those the rank runs it on here, in the order of the segment.
        site: the line of Python that it comes from; "" if that is not known.
    """

    rank: Rank
    ticket: int
    memory: Memory
    program: Program
    devices: tuple[int, ...]
    mine: tuple[int, ...]
    site: str

    def parts(self) -> Iterator[tuple[int, int]]:
        """Each device's id, and its index within the segment."""
        for index, device in enumerate(self.mine):
            yield device, index
