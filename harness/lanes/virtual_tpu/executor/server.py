"""Lets ranks meet, runs their programs, and ends a job that can't go on, with the reason."""

from __future__ import annotations

import array
import os
import selectors
import socket
import struct
import threading
import time
import traceback
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from harness.lanes.virtual_tpu.executor.diagnosis import Diagnosis
from harness.lanes.virtual_tpu.executor.history import History
from harness.lanes.virtual_tpu.executor.launches import Launch, Launcher
from harness.lanes.virtual_tpu.executor.matching import mismatch
from harness.lanes.virtual_tpu.executor.programs import Program
from harness.lanes.virtual_tpu.executor.queues import Queues
from harness.lanes.virtual_tpu.executor.ranks import (
    MOST_MESSAGE,
    Execution,
    Memory,
    Rank,
    is_runnable,
)

_LOOK = 0.5  # seconds between two looks at whether anything still moves
_ALONE = 60.0  # seconds that an executor waits for its first rank
_SECONDS = 20.0
_ANSWER = 2.0  # seconds that a rank has to say where it is
_MOST_LAUNCHES = 4096  # at a time: one a device
_IDLE = 0.02  # of a core: below it a process does nothing


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
        # One launch may need another to end, so none waits for a thread.
        self._threads = ThreadPoolExecutor(max_workers=_MOST_LAUNCHES)
        self._ranks: dict[int, Rank] = {}
        self._left: dict[int, Rank] = {}
        self._owners: dict[int, int] = {}
        self._queues = Queues()
        self._running: dict[int, Launch] = {}
        self._ended: deque[Launch] = deque()
        self._launcher: Launcher | None = None
        self._checked: set[tuple[bytes, ...]] = set()
        self._history = History()
        self._failed = ""
        self._deadline = float(os.environ.get("VIRTUAL_TPU_DEADLINE") or _SECONDS)
        self._moved = self._looked = time.monotonic()
        self._worked = 0.0

    def serve(self) -> None:
        """Returns when the last rank has left, or the one that started this process has."""
        self._selector.register(self._listening, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        start, starter = time.monotonic(), os.getppid()
        while self._ranks or (
            not self._left and os.getppid() == starter and time.monotonic() < start + _ALONE
        ):
            try:
                self._turn(_LOOK)
                while self._ended:
                    self._end(self._ended.popleft())
                self._look()
            except Exception:  # whatever it is, the ranks must hear of it
                self._tell(f"virtual TPU: the job's executor failed:\n{traceback.format_exc()}")

    def _turn(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            if key.fileobj is self._listening:
                connection, _ = self._listening.accept()
                self._selector.register(connection, selectors.EVENT_READ)
            elif key.fileobj is self._woken:
                self._woken.recv(4096)
            elif isinstance(key.fileobj, socket.socket):
                self._hear(key.fileobj)
        for rank in self._ranks.values():
            rank.flush()

    # --- Messages

    def _hear(self, connection: socket.socket) -> None:
        rank = next((r for r in self._ranks.values() if r.connection is connection), None)
        try:
            content, ancillary, _, _ = connection.recvmsg(MOST_MESSAGE, socket.CMSG_SPACE(4))
        except OSError:
            content, ancillary = b"", []
        descriptors = array.array("i")
        for _, _, data in ancillary:
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
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
        if word == "program":
            number, size, partitions, count = map(int, words)
            content = os.pread(descriptors[0], size, 0)
            rank.programs[number] = Program(content, count, partitions)
        elif word == "forget":
            rank.programs.pop(int(words[0]), None)
        elif word == "segment":
            rank.memory[int(words[0])] = Memory(descriptors[0], int(words[1]))
        elif word == "drop":
            rank.memory.pop(int(words[0]), None)
        elif word == "execute":
            self._queue(rank, words, text)
        elif word == "stacks":
            rank.stacks = text

    def _welcome(self, connection: socket.socket, word: str, words: Sequence[str]) -> None:
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid, user, _ = struct.unpack("3i", peer)
        try:
            token, number, total, listed = words if word == "hello" else ()
            devices = tuple(map(int, listed.split(",")))
            rank, count = Rank(connection, int(number), pid, devices), int(total)
        except ValueError:
            self._refuse(connection, "it does not speak as a rank does")
            return
        if user != os.getuid() or token != self._token:
            self._refuse(connection, "XLA_HARNESS_JOB_TOKEN is not that of this job")
        elif rank.number in self._ranks:
            other = self._ranks[rank.number].pid
            self._refuse(connection, f"rank {rank.number} has come already, as process {other}")
        elif taken := [one for one in devices if one in self._owners]:
            self._refuse(
                connection, f"device {taken[0]} is that of rank {self._owners[taken[0]]} already"
            )
        elif not set(devices) <= set(range(count)):
            self._refuse(connection, f"a job of {count} devices has none of number {max(devices)}")
        elif why := self._start_launcher(count):
            self._refuse(connection, why)
        else:
            self._ranks[rank.number] = rank
            self._left.pop(rank.number, None)
            self._owners.update(dict.fromkeys(rank.devices, rank.number))
            rank.send("welcome")
            if self._failed:
                rank.send("failed", self._failed)

    def _start_launcher(self, devices: int) -> str:
        """Why a rank of a job of so many devices can't join; "" if it can."""
        if self._launcher is None:
            try:
                self._launcher = Launcher(devices)
            except OSError as error:
                return str(error)
        if devices != self._launcher.devices:
            return f"the job has {self._launcher.devices} devices, and this process says {devices}"
        return ""

    def _refuse(self, connection: socket.socket, why: str) -> None:
        self._selector.unregister(connection)
        with connection:
            connection.send(f"refused {why}".encode(), socket.MSG_DONTWAIT)

    def _gone(self, connection: socket.socket, rank: Rank | None) -> None:
        self._selector.unregister(connection)
        connection.close()
        if rank is None:
            return
        del self._ranks[rank.number]
        self._left[rank.number] = rank
        self._queues.remove(rank)
        for device in rank.devices:
            del self._owners[device]
        self._start_ready()

    # --- Executions

    def _queue(self, rank: Rank, words: Sequence[str], site: str) -> None:
        ticket, memory, program = map(int, words[:3])
        devices, mine = (tuple(map(int, text.split(","))) for text in words[3:5])
        self._moved = time.monotonic()
        if self._failed:
            return
        self._queues.add(
            Execution(
                rank, ticket, rank.memory[memory], rank.programs[program], devices, mine, site
            )
        )
        self._start_ready()

    def _start_ready(self) -> None:
        """Start each program that all of its devices have come to; end a job that is stuck."""
        while not self._failed and (executions := self._queues.ready()):
            self._start(executions)
        if self._failed:
            return
        for one in self._queues.waiting():
            for rank in self._left.values():
                if set(rank.devices) & set(one.devices):
                    self._fail(self._diagnosis().left(rank, one))
                    return
        running = {device for launch in self._running.values() for device in launch.devices}
        if stuck := self._queues.stuck(running):
            self._fail(self._diagnosis().circle(stuck))

    def _start(self, executions: list[Execution]) -> None:
        devices = executions[0].devices
        of = {device: one for one in executions for device in one.mine}
        self._history.met(executions)
        if not self._match(executions, [of[device].program for device in devices]):
            return
        self._queues.take(executions)
        assert self._launcher is not None
        try:
            launch = self._launcher.prepare(executions)
        except ValueError as error:
            for execution in executions:
                execution.rank.send(f"error {execution.ticket}", str(error))
            return
        self._running[launch.number] = launch
        self._threads.submit(self._run, launch)

    def _match(self, executions: Sequence[Execution], programs: Sequence[Program]) -> bool:
        """Whether the programs' collectives match; ends the job if they do not."""
        key = tuple(program.digest for program in programs)
        if len(set(key)) == 1 or key in self._checked:
            return True
        if not any(program.decides for program in programs):  # else only running it says
            found = mismatch(programs)
            if found is not None:
                self._fail(self._diagnosis().mismatch(executions, found))
                return False
        self._checked.add(key)
        return True

    def _run(self, launch: Launch) -> None:
        assert self._launcher is not None
        self._launcher.run(launch)
        self._ended.append(launch)
        self._wake.send(b".")

    def _end(self, launch: Launch) -> None:
        del self._running[launch.number]
        self._moved = time.monotonic()
        for execution in launch.executions:
            if launch.error:
                execution.rank.send(f"error {execution.ticket}", launch.error)
            else:
                execution.rank.send(f"done {execution.ticket}")
        self._start_ready()

    # --- Jobs that can't go on

    def _diagnosis(self) -> Diagnosis:
        return Diagnosis(self._ranks, self._queues.waiting(), self._history.diverged)

    def _look(self) -> None:
        """End the job when nobody has done anything for as long as the deadline."""
        now = time.monotonic()
        if now - self._looked < _LOOK:
            return
        worked = sum(rank.seconds for rank in self._ranks.values()) + time.process_time()
        busy = bool(self._queues.waiting() or self._running) and not self._failed
        if not busy or worked - self._worked > _IDLE * (now - self._looked) or self._is_runnable():
            self._moved = now
        self._worked, self._looked = worked, now
        if not busy:
            return
        late = now - self._moved >= self._deadline
        for launch in self._running.values():
            if launch.error:  # the others may wait in a collective for the one that failed
                self._fail(self._diagnosis().broken(launch.executions, launch.error))
            elif late:
                self._fail(
                    self._diagnosis().inside(launch.executions, launch.ended, self._deadline)
                )
            if self._failed:
                return
        if late:
            self._fail(self._diagnosis().absent(self._deadline))

    def _is_runnable(self) -> bool:
        """Whether a process of the job waits for nothing but a CPU."""
        return any(rank.is_runnable for rank in self._ranks.values()) or is_runnable(
            os.getpid(), but=threading.get_native_id()
        )

    def _fail(self, why: Diagnosis) -> None:
        self._failed = why.reason  # nothing else is a reason from here on
        self._ask_where()
        self._tell(why.text())

    def _tell(self, failed: str) -> None:
        self._failed = failed
        self._queues.clear()
        for rank in self._ranks.values():
            rank.send("failed", failed)

    def _ask_where(self) -> None:
        """Ask each rank for its Python stacks; one that does not answer has none."""
        for rank in self._ranks.values():
            rank.stacks = None
            rank.send("stacks")
        end = time.monotonic() + _ANSWER
        while any(rank.stacks is None and not rank.is_stopped for rank in self._ranks.values()):
            if (rest := end - time.monotonic()) <= 0:
                return
            self._turn(rest)
