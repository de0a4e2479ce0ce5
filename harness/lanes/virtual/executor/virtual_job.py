"""A job: its programs start when their ranks have met, and it ends, with the reason, when stuck."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Collection, Sequence

from harness.lanes.virtual.executor.communicators import Communicators
from harness.lanes.virtual.executor.connected_ranks import Execution, Rank
from harness.lanes.virtual.executor.diagnosis import Diagnosis
from harness.lanes.virtual.executor.launches import Launch, Launcher
from harness.lanes.virtual.executor.matching import mismatch
from harness.lanes.virtual.executor.meeting_history import MeetingHistory
from harness.lanes.virtual.executor.processes import processes_without_rank
from harness.lanes.virtual.executor.programs import RankProgram
from harness.lanes.virtual.executor.queues import Queues
from harness.lanes.virtual.executor.stuck_report import report
from harness.lanes.virtual.executor.transfers import End, Transfers
from harness.lanes.virtual.executor.watch import Watch

_ANSWER = 2.0  # seconds that a rank has to say where it is
_DECIDE = 2.5  # seconds that ranks have to end, too, or to come, when one has ended
_NUMBER = struct.Struct("q")
_NOBODY = -1  # in place of the rank whose error is the whole text
PRINTED_VARIABLE = "XLA_HARNESS_PRINTS_REASON"  # set by a command that prints the whole text


class VirtualJob:
    """The ranks that are there, what their devices are before, and what runs.

    Args:
        turn: hears what ranks say, for so many seconds at the most; ``go_on`` calls it.

    Attributes:
        ranks: those that are there, by their number.
        left: those that have ended.
        owners: the rank of each device that has one now.
        ends: has something to read when ``hear_ends`` has something to do.
        transfers: what ranks send to each other.
    """

    def __init__(self, turn: Callable[[float], None]) -> None:
        self.ranks: dict[int, Rank] = {}
        self.left: dict[int, Rank] = {}
        self.owners: dict[int, int] = {}
        self.ends, self._ended = os.pipe()
        self._turn = turn
        self._queues = Queues()
        self.transfers = Transfers()
        self._running: dict[int, Launch] = {}
        self._launcher: Launcher | None = None
        self._checked: set[tuple[bytes, ...]] = set()
        self._history = MeetingHistory()
        self._communicators = Communicators()
        self._changed = False  # since ready programs were started
        self._failed = ""
        self._failing: Diagnosis | None = None  # of which the ranks have not been told
        self._left_since = 0.0  # since when ranks wait for one that has ended; 0 if none does
        self._is_complete = False  # all ranks have come, be they gone again or not
        self._watch = Watch()

    def expect(self, devices: int) -> str:
        """Explain why a rank of a job with that many devices can't join; return "" if it can."""
        if self._launcher is None:
            try:
                self._launcher = Launcher(devices)
            except OSError as error:
                return str(error)
        if devices != self._launcher.devices:
            return f"the job has {self._launcher.devices} devices, and this process says {devices}"
        return ""

    def join(self, rank: Rank) -> None:
        """Take a rank in, and tell it so, and all when it is the last one.

        It hears at once of a job that has failed.
        """
        self.ranks[rank.number] = rank
        self.left.pop(rank.number, None)
        self.owners.update(dict.fromkeys(rank.devices, rank.number))
        rank.send("welcome")
        if self._failed:
            rank.send(f"failed {_NOBODY}", self._failed)
        if self._is_complete:
            rank.send("complete")
        elif not self.missing:
            self._is_complete = True
            for member in self.ranks.values():
                member.send("complete")

    @property
    def missing(self) -> list[int]:
        """Devices whose rank has not come yet, be it gone again or not."""
        assert self._launcher is not None
        came = {d for rank in (*self.ranks.values(), *self.left.values()) for d in rank.devices}
        return [device for device in range(self._launcher.devices) if device not in came]

    def leave(self, rank: Rank) -> None:
        """Remove a rank that has ended, and let those that wait for it know."""
        del self.ranks[rank.number]
        self.left[rank.number] = rank
        self._queues.remove(rank)
        self.transfers.leave(rank)
        if self._launcher is not None:
            self._launcher.host_has_ended(rank)
        for device in rank.devices:
            del self.owners[device]
        self._changed = True
        if not self._is_complete and not self._failed:
            self._fail(self._diagnosis().unfinished(rank))

    def queue(self, execution: Execution) -> None:
        """Queue a program that a rank has come to."""
        self._watch.moved()
        if self._failed:
            return
        self._queues.add(execution)
        self._history.queued(execution)
        self._changed = True

    def transfer(self, end: End, *to: int) -> None:
        """Match a rank that receives with one that sends, which has a number."""
        self._watch.moved()
        if self._failed:
            return
        if to:
            self.transfers.send(end, *to)
        else:
            self.transfers.receive(end)

    def hosted(self, number: int, error: str) -> None:
        """Note that a rank's host has taken or brought what a program waits for."""
        self._watch.moved()
        assert self._launcher is not None
        self._launcher.hosted(number, error)

    def hear_ends(self) -> None:
        """Answer for launches that have ended."""
        for (number,) in _NUMBER.iter_unpack(os.read(self.ends, 512 * _NUMBER.size)):
            self._end(self._running.pop(number))

    def go_on(self) -> None:
        """Start what can start now, and end a job that has failed or does not move."""
        if self._changed:
            self._changed = False
            self._start_ready()
        self._look()
        if self._failing is not None:
            self._ask_where()
            waiting = sorted({execution.rank.number for execution in self._queues.waiting()})
            receiving = {end.rank.number for end in self.transfers.waiting()}
            text = report(self._failing, self.ranks, self._history, waiting)
            self.tell(text, self._failing.culprits, {*waiting, *receiving})

    def tell(
        self, failed: str, culprits: Collection[int] = (), waiting: Collection[int] = ()
    ) -> None:
        """Tell all ranks why the job can't go on.

        One of them has the whole text in its error: none of the culprits if possible, and one of
        those that are ``waiting``, since what another does next may never end in an error. The
        errors of the others have its first line; those of all, where a command prints the text.
        """
        self._failed, self._failing = failed, None
        self._queues.clear()
        self.transfers.clear()
        reporter = min(
            self.ranks, key=lambda n: (n in culprits, n not in waiting, n), default=_NOBODY
        )
        if os.environ.get(PRINTED_VARIABLE):
            reporter = _NOBODY
        for rank in self.ranks.values():
            rank.send(f"failed {reporter}", failed)

    # --- Executions

    def _start_ready(self) -> None:
        """Start each program that all of its devices have come to; end a job that is stuck."""
        while not self._failed and (executions := self._queues.ready()):
            self._start(executions)
        if self._failed:
            return
        if self._is_left():
            return
        if stuck := self._queues.stuck(self._running_devices):
            self._fail(self._diagnosis().circle(stuck))

    def _is_left(self) -> bool:
        """End a job in which ranks wait for one that has ended, or look again soon.

        Whether it ended too early, or the others wait for one program too many, those say that
        still have to come to it or to end.
        """
        waiting = self._queues.waiting()
        gone = {device for rank in self.left.values() for device in rank.devices} - set(self.owners)
        execution = next(
            (execution for execution in waiting if gone & set(execution.devices)), None
        )
        if execution is None:
            self._left_since = 0.0
            return False
        now = time.monotonic()
        self._left_since = self._left_since or now
        waiters = {execution.rank.number for execution in waiting}
        are_most = 2 * len(waiters) >= len(self.ranks) + len(self.left)
        undecided = self.ranks.keys() - waiters and not are_most and len(self.left) == 1
        if undecided and now - self._left_since < _DECIDE:
            self._changed = True
        else:
            self._fail(self._diagnosis().left(execution))
        return True

    def _start(self, executions: list[Execution]) -> None:
        devices = executions[0].devices
        of = {device: execution for execution in executions for device in execution.mine}
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
        self._communicators.start(devices, executions[0].program)
        self._launcher.start(launch, self._ended)

    def _match(self, executions: Sequence[Execution], programs: Sequence[RankProgram]) -> bool:
        """Return whether the programs' collectives match; end the job if they do not."""
        key = tuple(program.digest for program in programs)
        if len(set(key)) == 1 or key in self._checked:
            return True
        if not any(program.decides for program in programs):  # else only running it says
            difference = mismatch(programs)
            if difference is not None:
                self._fail(self._diagnosis().mismatch(executions, difference))
                return False
        self._checked.add(key)
        return True

    def _end(self, launch: Launch) -> None:
        self._watch.moved()
        error = launch.error
        for execution, answer in zip(launch.executions, launch.answers, strict=True):
            if error:
                execution.rank.send(f"error {execution.ticket}", error)
            elif not answer.is_sent:
                execution.rank.send(f"done {execution.ticket}")
        self._changed = True

    # --- Jobs that can't go on

    def _diagnosis(self) -> Diagnosis:
        return Diagnosis(
            self.ranks,
            self.left,
            self._queues.waiting(),
            self._history,
            self.transfers.waiting(),
        )

    def _look(self) -> None:
        """End the job when those that others wait for have done nothing for the deadline."""
        if not self._watch.is_due:
            return
        waits = bool(self._queues.waiting() or self.transfers.waiting()) or not self._is_complete
        runs = bool(self._running)
        if self._failed or not self.ranks:
            waits = runs = False
        hosts = {self.ranks[number].pid: self.ranks[number].heard for number in self._hosts}
        self._watch.look(
            {**(self._awaited() if waits else {}), **hosts},
            ranks={rank.pid for rank in self.ranks.values()},
            waits=waits,
            runs=runs,
        )
        if not waits and not runs:
            return
        for launch in self._running.values():
            if launch.error:  # the others may wait in a collective for the one that failed
                device = launch.devices[launch.failed]
                self._fail(self._diagnosis().broken(launch.executions, device, launch.error))
                return
        if self._watch.is_late:
            self._fail(self._late())

    def _awaited(self) -> dict[int, float]:
        """Return the processes that others wait for, and when each last said something."""
        if not self._is_complete:
            pids = processes_without_rank({rank.pid for rank in self.ranks.values()})
            return dict.fromkeys(pids, 0.0)
        devices = self._queues.awaited(self._running_devices)
        numbers = {self.owners[device] for device in devices if device in self.owners}
        if receiving := {end.rank.number for end in self.transfers.waiting()}:
            waiting = {execution.rank.number for execution in self._queues.waiting()}
            numbers |= self.ranks.keys() - waiting - receiving  # any of them may be to send
        return {self.ranks[number].pid: self.ranks[number].heard for number in numbers}

    @property
    def _hosts(self) -> list[int]:
        """Return the ranks whose hosts a running program waits for."""
        if not self._running or self._launcher is None:
            return []
        return [n for n, rank in sorted(self.ranks.items()) if self._launcher.asks_host(rank)]

    @property
    def _running_devices(self) -> set[int]:
        return {device for launch in self._running.values() for device in launch.devices}

    def _late(self) -> Diagnosis:
        """Return why a job is late."""
        if not self._is_complete:
            processes = list(self._awaited())
            return self._diagnosis().incomplete(self.missing, processes, self._watch.deadline)
        if hosts := self._hosts:
            queued = [
                execution for launch in self._running.values() for execution in launch.executions
            ]
            return self._diagnosis().in_host(hosts, queued, self._watch.deadline)
        if not self._watch.stopped and self._running:
            launch = next(iter(self._running.values()))
            executions, ended = launch.executions, launch.ended
            return self._diagnosis().inside(executions, ended, self._watch.deadline)
        devices = self._queues.awaited(self._running_devices)
        return self._diagnosis().absent(devices, self._watch.deadline)

    def _fail(self, why: Diagnosis) -> None:
        # Nothing else is a reason from here on. No rank is asked here, where one is being heard.
        self._failed, self._failing = why.reason, why

    def _ask_where(self) -> None:
        """Ask each rank for its Python stacks; one that does not answer has none."""
        for rank in self.ranks.values():
            rank.stacks = None
            rank.send("stacks")
        end = time.monotonic() + _ANSWER
        while any(rank.stacks is None and not rank.is_stopped for rank in self.ranks.values()):
            if (rest := end - time.monotonic()) <= 0:
                return
            self._turn(rest)
