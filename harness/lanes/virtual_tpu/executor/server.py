"""Hears the ranks of a job: lets in who has its token, and learns what they share and queue."""

from __future__ import annotations

import array
import os
import selectors
import socket
import struct
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from functools import cache

from harness.lanes.virtual_tpu.executor.job import Job
from harness.lanes.virtual_tpu.executor.programs import Program
from harness.lanes.virtual_tpu.executor.ranks import MOST_MESSAGE, Execution, Memory, Rank
from harness.lanes.virtual_tpu.executor.transfers import End
from harness.lanes.virtual_tpu.executor.watch import LOOK

_ALONE = 60.0  # seconds that an executor waits for its first rank


class Server:
    """One job.

    Args:
        listening: a bound socket; ranks connect to it.
        token: what a rank must know.
        starter: the process that started this one.
    """

    def __init__(self, listening: socket.socket, token: str, starter: int) -> None:
        self._listening, self._token, self._starter = listening, token, starter
        self._selector = selectors.DefaultSelector()
        self._ranks: dict[socket.socket, Rank] = {}  # by their connections
        self._job = Job(self._turn)

    def serve(self) -> None:
        """Returns when the last rank has left, or the one that started this process has."""
        self._selector.register(self._listening, selectors.EVENT_READ)
        self._selector.register(self._job.ends, selectors.EVENT_READ)
        end = time.monotonic() + _ALONE
        while self._job.ranks or (
            not self._job.left and os.getppid() == self._starter and time.monotonic() < end
        ):
            try:
                self._turn(LOOK)
                self._job.go_on()
            except Exception:  # whatever it is, the ranks must hear of it
                self._job.tell(f"virtual TPU: the job's executor failed:\n{traceback.format_exc()}")

    def _turn(self, seconds: float) -> None:
        """Hear what ranks say, for that long at the most."""
        for key, _ in self._selector.select(seconds):
            if key.fileobj is self._listening:
                connection, _ = self._listening.accept()
                self._selector.register(connection, selectors.EVENT_READ)
            elif key.fileobj == self._job.ends:
                self._job.hear_ends()
            elif isinstance(key.fileobj, socket.socket):
                self._hear(key.fileobj)
        for rank in self._job.ranks.values():
            if rank.unsent:
                rank.flush()

    def _hear(self, connection: socket.socket) -> None:
        rank = self._ranks.get(connection)
        try:
            content, ancillary, _, _ = connection.recvmsg(MOST_MESSAGE, socket.CMSG_SPACE(4))
        except OSError:
            content, ancillary = b"", []
        descriptors = _descriptors(ancillary) if ancillary else ()
        try:
            if not content:
                self._gone(connection, rank)
                return
            line, _, text = content.decode(errors="replace").partition("\n")
            word, *words = line.split(" ")
            if rank is None:
                self._welcome(connection, word, words)
            else:
                self._learn(rank, word, words, text, descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _learn(
        self, rank: Rank, word: str, words: Sequence[str], text: str, descriptors: Sequence[int]
    ) -> None:
        rank.heard = time.monotonic()
        if word == "execute":
            self._queue(rank, words, text)
        elif word == "program":
            number, size, partitions, count = map(int, words)
            content = os.pread(descriptors[0], size, 0)
            rank.programs[number] = Program(content, count, partitions)
        elif word == "forget":
            rank.programs.pop(int(words[0]), None)
        elif word == "segment":
            rank.memory[int(words[0])] = Memory(descriptors[0], int(words[1]))
        elif word == "drop":
            rank.memory.pop(int(words[0]), None)
        elif word in ("receive", "send"):
            self._transfer(rank, list(map(int, words)), text, descriptors[0])
        elif word == "unreceive":
            self._job.transfers.forget(rank, int(words[0]))
        elif word == "stacks":
            rank.stacks = text

    def _welcome(self, connection: socket.socket, word: str, words: Sequence[str]) -> None:
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid, user, _ = struct.unpack("3i", peer)
        try:
            token, number, total, listed = words if word == "hello" else ()
            devices = _ids(listed)
            rank, count = Rank(connection, int(number), pid, devices), int(total)
        except ValueError:
            self._refuse(connection, "it does not speak as a rank does")
            return
        if user != os.getuid() or token != self._token:
            self._refuse(connection, "XLA_HARNESS_JOB_TOKEN is not that of this job")
        elif rank.number in self._job.ranks:
            other = self._job.ranks[rank.number].pid
            self._refuse(connection, f"rank {rank.number} has come already, as process {other}")
        elif taken := [one for one in devices if one in self._job.owners]:
            other = self._job.owners[taken[0]]
            self._refuse(connection, f"device {taken[0]} is that of rank {other} already")
        elif not set(devices) <= set(range(count)):
            self._refuse(connection, f"a job of {count} devices has none of number {max(devices)}")
        elif why := self._job.expect(count):
            self._refuse(connection, why)
        else:
            self._ranks[connection] = rank
            self._job.join(rank)

    def _refuse(self, connection: socket.socket, why: str) -> None:
        self._selector.unregister(connection)
        with connection:
            connection.send(f"refused {why}".encode(), socket.MSG_DONTWAIT)

    def _gone(self, connection: socket.socket, rank: Rank | None) -> None:
        self._selector.unregister(connection)
        if rank is None:
            connection.close()
        else:
            # Not closed: a launch may still answer there, and must not reach another rank.
            del self._ranks[connection]
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            self._job.leave(rank)

    def _transfer(self, rank: Rank, numbers: list[int], site: str, descriptor: int) -> None:
        """A rank receives, or sends to a rank what has a number there."""
        number, *to, size = numbers
        memory = Memory(descriptor, max(size, 1))
        self._job.transfer(End(rank, number, memory, size, site), *to)

    def _queue(self, rank: Rank, words: Sequence[str], site: str) -> None:
        ticket, memory, program = map(int, words[:3])
        devices, mine = map(_ids, words[3:5])
        shared, queued = rank.memory[memory], rank.programs[program]
        self._job.queue(Execution(rank, ticket, shared, queued, devices, mine, site))


@cache  # the same few at each program
def _ids(listed: str) -> tuple[int, ...]:
    return tuple(map(int, listed.split(",")))


def _descriptors(ancillary: Sequence[tuple[int, int, bytes]]) -> Sequence[int]:
    found = array.array("i")
    for _, _, data in ancillary:
        found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return found
