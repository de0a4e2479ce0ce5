"""Lets ranks meet, runs their programs, and ends a job that can't go on, with the reason."""

from __future__ import annotations

import array
import ctypes
import os
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from harness.lanes.virtual_tpu.executor import native
from harness.lanes.virtual_tpu.executor.diagnosis import Diagnosis
from harness.lanes.virtual_tpu.executor.matching import mismatch
from harness.lanes.virtual_tpu.executor.programs import Groups, Program
from harness.lanes.virtual_tpu.executor.ranks import Execution, Memory, Rank

_LARGEST = 1 << 17
_LOOK = 0.5  # seconds between two looks at whether anything still moves
_ALONE = 60.0  # seconds that an executor without any rank stays
_SECONDS = 20.0
_ANSWER = 2.0  # seconds that a rank has to say where it is
_IDLE = 0.02  # of a core: below it a process does nothing
_HISTORY = 256


@dataclass(eq=False)
class Launch:
    """Executions that run together, one part a device."""

    number: int
    executions: list[Execution]
    parts: ctypes.Array[native.Part]
    order: list[int]  # the device of each part


class Server:
    """One job.

    Args:
        listening: a bound socket; ranks connect to it.
        token: what a rank must know.
    """

    def __init__(self, listening: socket.socket, token: str) -> None:
        self._listening, self._token = listening, token
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._ranks: dict[int, Rank] = {}
        self._left: dict[int, str] = {}
        self._owners: dict[int, int] = {}
        self._queues: dict[int, deque[Execution]] = {}
        self._running: dict[int, Launch] = {}
        self._ended: deque[Launch] = deque()
        self._native: native.Native | None = None
        self._loaded: dict[bytes, int] = {}
        self._ids: dict[tuple[Groups, int], int] = {}
        self._checked: set[tuple[int, ...]] = set()
        self._launches = 0
        self._failed = ""
        self._history: deque[list[tuple[int, str]]] = deque(maxlen=_HISTORY)
        self._deadline = float(os.environ.get("VIRTUAL_TPU_DEADLINE") or _SECONDS)
        self._moved, self._worked = time.monotonic(), 0.0

    def serve(self) -> None:
        """Returns when the last rank has left."""
        self._selector.register(self._listening, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        start = time.monotonic()
        while self._ranks or (not self._left and time.monotonic() < start + _ALONE):
            for key, _ in self._selector.select(_LOOK):
                self._ready(key)
            while self._ended:
                self._end(self._ended.popleft())
            self._look()

    def _ready(self, key: selectors.SelectorKey) -> None:
        if key.fileobj is self._listening:
            connection, _ = self._listening.accept()
            self._selector.register(connection, selectors.EVENT_READ)
        elif key.fileobj is self._woken:
            self._woken.recv(4096)
        elif isinstance(key.fileobj, socket.socket):
            self._hear(key.fileobj)

    # --- Messages

    def _hear(self, connection: socket.socket) -> None:
        rank = next((r for r in self._ranks.values() if r.connection is connection), None)
        try:
            content, ancillary, _, _ = connection.recvmsg(_LARGEST, socket.CMSG_SPACE(4))
        except OSError:
            content, ancillary = b"", []
        descriptors = array.array("i")
        for _, _, data in ancillary:
            descriptors.frombytes(data)
        try:
            if not content:
                self._gone(connection, rank)
            else:
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
        if word == "program":
            number, size, partitions, count = map(int, words)
            content = os.pread(descriptors[0], size, 0)
            rank.programs[number] = Program(content, count, partitions)
        elif word == "segment":
            rank.memory[int(words[0])] = Memory(descriptors[0], int(words[1]))
        elif word == "drop":
            rank.memory.pop(int(words[0]), None)
        elif word == "execute":
            self._queue(rank, words, text)
        elif word == "stacks":
            rank.stacks = text

    def _welcome(self, connection: socket.socket, word: str, words: Sequence[str]) -> None:
        if word != "hello" or len(words) != 5:
            self._refuse(connection, "it does not speak as a rank does")
            return
        token, pid, number, total, listed = words
        rank = Rank(connection, int(number), int(pid), tuple(map(int, listed.split(","))))
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        _, user, _ = struct.unpack("3i", peer)
        if user != os.getuid() or token != self._token:
            self._refuse(connection, "XLA_HARNESS_JOB_TOKEN is not that of this job")
        elif rank.number in self._ranks:
            other = self._ranks[rank.number].pid
            self._refuse(connection, f"rank {rank.number} has come already, as process {other}")
        elif taken := [one for one in rank.devices if one in self._owners]:
            self._refuse(
                connection, f"device {taken[0]} is that of rank {self._owners[taken[0]]} already"
            )
        else:
            self._native = self._native or native.Native(int(total))
            self._ranks[rank.number] = rank
            self._left.pop(rank.number, None)
            self._owners.update(dict.fromkeys(rank.devices, rank.number))
            rank.send("welcome")
            if self._failed:
                rank.send("failed", self._failed)

    def _refuse(self, connection: socket.socket, why: str) -> None:
        connection.send(f"refused {why}".encode())
        self._selector.unregister(connection)
        connection.close()

    def _gone(self, connection: socket.socket, rank: Rank | None) -> None:
        self._selector.unregister(connection)
        connection.close()
        if rank is None:
            return
        del self._ranks[rank.number]
        self._left[rank.number] = f"process {rank.pid}"
        for queue in self._queues.values():
            for execution in [one for one in queue if one.rank is rank]:
                queue.remove(execution)
        for device in rank.devices:
            del self._owners[device]
        self._departed(rank)

    # --- Executions

    def _queue(self, rank: Rank, words: Sequence[str], site: str) -> None:
        ticket, memory, program = map(int, words[:3])
        devices, mine = (tuple(map(int, text.split(","))) for text in words[3:5])
        if not rank.programs[program].collectives:  # as on hardware, it waits for nobody
            devices = mine
        execution = Execution(
            rank, ticket, rank.memory[memory], rank.programs[program], devices, mine, site
        )
        for device in mine:
            self._queues.setdefault(device, deque()).append(execution)
        self._moved = time.monotonic()
        if self._failed:
            return
        self._start_ready()

    def _head(self, device: int) -> Execution | None:
        queue = self._queues.get(device)
        return queue[0] if queue else None

    def _start_ready(self) -> None:
        """Start each program that all of its devices have come to."""
        started = True
        while started and not self._failed:
            started = False
            for queue in list(self._queues.values()):
                if queue and self._is_ready(queue[0]):
                    self._start(queue[0].devices)
                    started = True
                    break
        if not self._failed:
            self._look_for_circle()

    def _is_ready(self, execution: Execution) -> bool:
        heads = [self._head(device) for device in execution.devices]
        return all(
            one is not None
            and one.devices == execution.devices
            and all(self._head(device) is one for device in one.mine)
            for one in heads
        )

    def _start(self, devices: tuple[int, ...]) -> None:
        executions: list[Execution] = []
        of: dict[int, tuple[Execution, int]] = {}
        for device in devices:
            execution = self._queues[device][0]
            if execution not in executions:
                executions.append(execution)
                of.update({one: (execution, index) for one, index in execution.parts()})
        self._history.append([(e.rank.number, e.site) for e in executions])
        programs = [of[device][0].program for device in devices]
        if not self._match(executions, programs):
            return
        try:
            loaded = [self._load(program) for program in programs]
        except ValueError as error:
            self._take(executions)
            for execution in executions:
                execution.rank.send(f"error {execution.ticket}", str(error))
            return
        self._take(executions)
        self._launches += 1
        parts = native.parts(
            [
                (address, of[device][0].memory.address, of[device][1])
                for address, device in zip(loaded, devices, strict=True)
            ],
            self._launches,
        )
        launch = Launch(self._launches, executions, parts, list(devices))
        self._running[launch.number] = launch
        threading.Thread(target=self._run, args=(launch,), daemon=True).start()

    def _take(self, executions: Sequence[Execution]) -> None:
        for execution in executions:
            for device in execution.mine:
                self._queues[device].popleft()

    def _match(self, executions: Sequence[Execution], programs: Sequence[Program]) -> bool:
        """Whether the programs' collectives match; ends the job if they do not."""
        if all(program.content == programs[0].content for program in programs):
            return True
        key = tuple(map(id, programs))
        if key in self._checked:
            return True
        self._checked.add(key)
        if any(program.decides for program in programs):
            return True  # only running it says what each reaches
        found = mismatch(programs)
        if found is not None:
            self._fail(self._diagnosis().mismatch(executions, found))
        return found is None

    def _load(self, program: Program) -> int:
        content = program.meeting(self._ids)
        if content not in self._loaded:
            assert self._native is not None
            self._loaded[content] = self._native.load(content)
        return self._loaded[content]

    def _run(self, launch: Launch) -> None:
        assert self._native is not None
        self._native.run(launch.parts)
        self._ended.append(launch)
        self._wake.send(b".")

    def _end(self, launch: Launch) -> None:
        del self._running[launch.number]
        self._moved = time.monotonic()
        errors = [part.error.decode(errors="replace") for part in launch.parts]
        error = next((one for one in errors if one), "")
        for execution in launch.executions:
            if error:
                execution.rank.send(f"error {execution.ticket}", error)
            else:
                execution.rank.send(f"done {execution.ticket}")
        self._start_ready()

    # --- Jobs that can't go on

    def _waiting(self) -> list[Execution]:
        found: list[Execution] = []
        for queue in self._queues.values():
            if queue and queue[0] not in found:
                found.append(queue[0])
        return found

    def _diagnosis(self) -> Diagnosis:
        return Diagnosis(dict(self._ranks), dict(self._left), self._waiting(), list(self._history))

    def _look_for_circle(self) -> None:
        """Devices that wait for each other, each before another program, wait for ever."""
        reach: set[int] = set()
        for device, queue in self._queues.items():
            if queue and self._head(device) is not None:
                reach.add(device)
        running = {device for launch in self._running.values() for device in launch.order}
        waiting = {device for device in reach if device not in running}
        moved = True
        while moved:  # drop whoever waits for a device that may still come
            moved = False
            for device in list(waiting):
                head = self._head(device)
                if head is not None and any(
                    one not in waiting or one in running for one in head.devices
                ):
                    waiting.discard(device)
                    moved = True
        if waiting:
            self._fail(self._diagnosis().circle(sorted(waiting)))

    def _departed(self, rank: Rank) -> None:
        """A program that a rank which has left would have to run never runs."""
        if self._failed:
            return
        lost = [one for one in self._waiting() if set(rank.devices) & set(one.devices)]
        if lost:
            self._fail(self._diagnosis().left(rank, lost[0]))

    def _look(self) -> None:
        """End the job when nobody has done anything for as long as the deadline."""
        busy = self._waiting() or self._running
        worked = sum(rank.seconds for rank in self._ranks.values()) + time.process_time()
        now = time.monotonic()
        if not busy or self._failed or worked - self._worked > _IDLE * _LOOK:
            self._moved = now
        self._worked = worked
        if now - self._moved < self._deadline:
            return
        if self._running:
            launch = next(iter(self._running.values()))
            ended = [
                device
                for device, part in zip(launch.order, launch.parts, strict=True)
                if part.state == native.ENDED
            ]
            self._fail(self._diagnosis().inside(launch.executions, ended, self._deadline))
        else:
            self._fail(self._diagnosis().absent(self._deadline))

    def _fail(self, why: Diagnosis) -> None:
        self._ask_where()
        self._failed = why.text()
        for rank in self._ranks.values():
            rank.send("failed", self._failed)
        self._queues.clear()

    def _ask_where(self) -> None:
        """Ask each rank for its Python stacks; one that does not answer has none."""
        asked = list(self._ranks.values())
        for rank in asked:
            rank.stacks = ""
            rank.send("stacks 0")
        end = time.monotonic() + _ANSWER
        while (rest := end - time.monotonic()) > 0 and not all(rank.stacks for rank in asked):
            for key, _ in self._selector.select(rest):
                self._ready(key)
            asked = [rank for rank in asked if rank.number in self._ranks]
