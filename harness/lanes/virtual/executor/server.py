"""Hears the ranks of a job: lets in who has its token, and learns what they share and queue."""

from __future__ import annotations

import array
import errno
import os
import selectors
import socket
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from functools import cache

from harness.lanes.virtual import in_own_words
from harness.lanes.virtual.executor.connected_ranks import (
    MOST_MESSAGE,
    Execution,
    Rank,
    SharedSegment,
)
from harness.lanes.virtual.executor.programs import RankProgram
from harness.lanes.virtual.executor.strangers import Strangers
from harness.lanes.virtual.executor.transfers import End
from harness.lanes.virtual.executor.virtual_job import VirtualJob
from harness.lanes.virtual.executor.watch import LOOK
from harness.messages import is_token

_ALONE = 60.0  # seconds that an executor waits for its first rank


class Server:
    """Server of one job, to which its ranks connect.

    Args:
        listening: a bound socket; ranks connect to it.
        token: what a rank must know.
        starter: the process that started this one.
    """

    def __init__(self, listening: socket.socket, token: str, starter: int) -> None:
        self._listening, self._token, self._starter = listening, token, starter
        self._selector = selectors.DefaultSelector()
        self._strangers = Strangers(listening, self._selector)
        self._ranks: dict[socket.socket, Rank] = {}  # by their connections
        self._job = VirtualJob(self._turn)

    def serve(self) -> None:
        """Serve until the last rank has left, or the process that started this one."""
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
                why = f"the job's executor failed:\n{traceback.format_exc()}"
                self._job.tell(in_own_words(why))

    def _turn(self, seconds: float) -> None:
        """Hear what ranks say, for that long at the most."""
        for key, _ in self._selector.select(seconds):
            if key.fileobj is self._listening:
                for connection in self._strangers.accept():
                    self._meet(connection)
            elif key.fileobj == self._job.ends:
                self._job.hear_ends()
            elif isinstance(key.fileobj, socket.socket):
                self._hear(key.fileobj)
        self._strangers.drop_late()
        for rank in self._job.ranks.values():
            if rank.unsent:
                rank.flush()

    def _hear(self, connection: socket.socket) -> None:
        """Hear a rank or a stranger; one that has been dropped since it spoke is neither."""
        if connection in self._strangers:
            self._meet(connection)
        elif connection in self._ranks:
            self._hear_rank(connection, self._ranks[connection])

    def _hear_rank(self, connection: socket.socket, rank: Rank) -> None:
        flags = 0
        try:
            content, ancillary, flags, _ = connection.recvmsg(MOST_MESSAGE, socket.CMSG_SPACE(4))
        except BlockingIOError:
            return
        except OSError:
            content, ancillary = b"", []
        descriptors = _descriptors(ancillary) if ancillary else ()
        try:
            if not content:
                self._gone(connection, rank)
                return
            if flags & socket.MSG_CTRUNC:
                why = f"the executor can open no more files for what rank {rank.number} shares"
                raise OSError(errno.EMFILE, why)
            line, _, text = content.decode(errors="replace").partition("\n")
            word, *words = line.split(" ")
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
            rank.programs[number] = RankProgram(content, count, partitions)
        elif word == "forget":
            rank.programs.pop(int(words[0]), None)
        elif word == "segment":
            rank.memory[int(words[0])] = SharedSegment(descriptors[0], int(words[1]))
        elif word == "drop":
            rank.memory.pop(int(words[0]), None)
        elif word in ("receive", "send"):
            self._transfer(rank, list(map(int, words)), text, descriptors[0])
        elif word == "unreceive":
            self._job.transfers.forget(rank, int(words[0]))
        elif word == "hosted":
            self._job.hosted(int(words[0]), text)
        elif word == "stacks":
            rank.stacks = text

    def _meet(self, connection: socket.socket) -> None:
        """Hear a stranger, without room for descriptors: the kernel closes those that it sends."""
        try:
            content = connection.recv(MOST_MESSAGE)
        except BlockingIOError:
            return
        except OSError:
            content = b""
        word, *words = content.decode(errors="replace").partition("\n")[0].split(" ")
        if not content:
            self._strangers.drop(connection)
        elif word != "hello" or not words or not is_token(words[0], self._token):
            self._refuse(connection, "XLA_HARNESS_JOB_TOKEN is not that of this job")
        elif why := self._welcome(connection, words[1:]):
            self._refuse(connection, why)

    def _welcome(self, connection: socket.socket, words: Sequence[str]) -> str:
        """Let in a rank that has shown the token; return why it can't take part, or ""."""
        try:
            number, count, listed, placed = words
            rank, total = int(number), int(count)
            devices = _ids(listed)
            places = frozenset(placed.split(",")) - {"-"}
        except ValueError:
            return "it does not speak as a rank does"
        if rank in self._job.ranks:
            return f"rank {rank} has come already, as process {self._job.ranks[rank].pid}"
        if why := self._who_has(devices, places):
            return why
        if not set(devices) <= set(range(total)):
            return f"a job of {total} devices has none of number {max(devices)}"
        if why := self._job.expect(total):
            return why
        pid = self._strangers.admit(connection)
        self._ranks[connection] = Rank(connection, rank, pid, devices, places)
        self._job.join(self._ranks[connection])
        return ""

    def _who_has(self, devices: Sequence[int], places: frozenset[str]) -> str:
        """Return which rank has any of these devices already; "" if none has."""
        if taken := [device for device in devices if device in self._job.owners]:
            other = self._job.owners[taken[0]]
            return f"device {taken[0]} is that of rank {other} already"
        for rank in self._job.ranks.values():
            if shared := places & rank.places:
                node, _, device = min(shared).partition(":")
                taken_by = f"is that of rank {rank.number} already: expected one for each rank"
                return f"device {device} of node {node} {taken_by}"
        return ""

    def _refuse(self, connection: socket.socket, why: str) -> None:
        with suppress(OSError):  # it has gone, or takes nothing in
            connection.send(f"refused {why}".encode(), socket.MSG_DONTWAIT)
        self._strangers.drop(connection)

    def _gone(self, connection: socket.socket, rank: Rank) -> None:
        self._selector.unregister(connection)
        # Not closed: a launch may still answer there, and must not reach another rank.
        del self._ranks[connection]
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        self._job.leave(rank)

    def _transfer(self, rank: Rank, numbers: list[int], site: str, descriptor: int) -> None:
        """Receive for a rank, or send to a rank what has a number there."""
        number, *to, size = numbers
        memory = SharedSegment(descriptor, max(size, 1))
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
    descriptors = array.array("i")
    for _, _, data in ancillary:
        descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    return descriptors
