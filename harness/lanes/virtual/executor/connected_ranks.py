"""A rank as the executor knows it: its connection, its memory, and what it waits for."""

from __future__ import annotations

import ctypes
import mmap
import socket
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from harness.lanes.virtual.executor.activity import process_stat
from harness.lanes.virtual.executor.programs import RankProgram

MOST_MESSAGE = 1 << 17  # bytes; plugin/job/job.c has the same


class SharedSegment:
    """A segment that a rank shares, mapped here."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._map = mmap.mmap(descriptor, size)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))


@dataclass
class Rank:
    """Process of the job that has connected to the executor.

    Attributes:
        number: its process index in the job.
        devices: the ids of its own devices.
        places: these devices as their nodes count them, such as ``0:3``, where ranks choose them.
        heard: when it last said something.
    """

    connection: socket.socket
    number: int
    pid: int
    devices: tuple[int, ...]
    places: frozenset[str] = frozenset()
    programs: dict[int, RankProgram] = field(default_factory=dict)
    memory: dict[int, SharedSegment] = field(default_factory=dict)
    stacks: str | None = None
    unsent: deque[bytes] = field(default_factory=deque)
    heard: float = field(default_factory=time.monotonic)

    def send(self, line: str, text: str = "") -> None:
        """Send a message, or keep it for ``flush`` as long as the rank takes none in."""
        self.unsent.append(f"{line}\n{text}".encode()[: MOST_MESSAGE - 1])
        self.flush()

    def flush(self) -> None:
        """Send what is unsent as far as the rank takes it; one that has gone needs nothing."""
        while self.unsent:
            try:
                self.connection.send(self.unsent[0], socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:
                self.unsent.clear()
                return
            self.unsent.popleft()

    @property
    def is_stopped(self) -> bool:
        """Return whether a signal has stopped the process."""
        stat = process_stat(self.pid)
        return stat is not None and stat.state == "T"


@dataclass(frozen=True, eq=False)
class Execution:
    """Execution of a program that a rank has queued on some of its devices.

    Attributes:
        ticket: the rank's number for it.
        devices: ids of all devices of the program, in its order.
        mine: of those the rank runs it on here, in the order of the segment.
        site: the lines of Python that it comes from; "" if they are not known.
    """

    rank: Rank
    ticket: int
    memory: SharedSegment
    program: RankProgram
    devices: tuple[int, ...]
    mine: tuple[int, ...]
    site: str

    def parts(self) -> Iterator[tuple[int, int]]:
        """Yield each device's id and its index within the segment."""
        for index, device in enumerate(self.mine):
            yield device, index
