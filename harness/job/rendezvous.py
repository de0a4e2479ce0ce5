"""Rendezvous of a job's workers: all of them start the same case together, or none does.

Before each case the first worker awaits all others, and lets them go. One that was held up, by a
case that hung there, finds the others further on, gives up the cases in between and joins them: so
a hang costs as many cases as its deadline is long, not the rest of the run.

The messages, and what each means, are in ``harness.messages.jobs``. No thread waits here: this
process forks.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Protocol

from harness.errors import BadInputError
from harness.isolation.post_mortem import Death
from harness.job import wire
from harness.job.job import Job
from harness.messages.jobs import At, Go, Hello, Late, Left, No, Stop, WorkerLost
from harness.messages.typed import Message, MessageError
from harness.model.outcome import DECLARABLE, Kind

_FIRST = 10  # times the patience until all have come for the first time: a node may still start
_LINE = 1 << 16  # bytes


class Rendezvous(Protocol):
    """Rendezvous from the side of one worker."""

    def meet(self, number: int, seconds: float) -> Death | None:
        """Wait at most ``seconds`` until all workers are at that case; else why it can't start.

        Raises BadInputError when a worker has other cases.
        """


class Meetings:
    """The rendezvous before each of this worker's cases, in the order in which they run."""

    def __init__(self, job: Job, cases: Sequence[str]) -> None:
        self._job = job
        self._numbers = {case: number for number, case in enumerate(cases)}
        self._rendezvous: Rendezvous | None = None
        self._cases = cases
        self._before = 0.0  # the deadline of the case before

    def before(self, case: str, deadline: float) -> Death | None:
        """Await all others at ``case``, whose own deadline is given in seconds.

        Raises BadInputError when a worker has other cases, or there is no address to meet at.
        """
        seconds = self._before + self._job.patience
        if self._rendezvous is None:
            seconds = _FIRST * self._job.patience
            first = self._job.number == 0
            end = time.monotonic() + seconds
            self._rendezvous = (
                First(self._job, self._cases) if first else Other(self._job, self._cases, end)
            )
        self._before = deadline
        return self._rendezvous.meet(self._numbers[case], seconds)


class First:
    """The first worker's side: it listens, and lets the others start only together."""

    def __init__(self, job: Job, cases: Sequence[str]) -> None:
        self._job, self._cases, self._digest = job, cases, _digest(cases)
        self._at: dict[int, int] = {}  # the case that each worker waits at
        self._lost = ""  # why there is nobody to wait for any more
        try:
            self._listener = wire.Listener(job.address[1], job, _LINE)
        except OSError as error:
            raise BadInputError(f"rendezvous at port {job.address[1]}: {error.strerror}") from error

    def meet(self, number: int, seconds: float) -> Death | None:
        end = time.monotonic() + seconds
        self._hear(0)
        while (outcome := self._look(number)) is None:
            if (left := end - time.monotonic()) <= 0:  # however much a stranger has to say
                outcome = self._never_came(number, seconds)
                break
            self._hear(left)
        answer = No(number, outcome.message, outcome.kind) if outcome.message else Go(number)
        for worker in [worker for worker, at in self._at.items() if at == number]:
            self._answer(worker, answer)
        return outcome if outcome.message else None

    def _look(self, number: int) -> Death | None:
        """Return why not to start, a death without message to start, or None if unknown."""
        if self._lost:
            self._tell_all(WorkerLost(self._lost))
            return _death(Kind.CRASHED, self._lost)
        for worker, at in sorted(self._at.items()):
            if at < number:
                self._answer(worker, Late(number))
            elif at > number:
                name = self._job.worker(worker)
                return _death(Kind.HUNG, f"worker {name} has gone on to {self._cases[at]}")
        return _death(Kind.PASSED, "") if len(self._at) == self._job.count - 1 else None

    def _never_came(self, number: int, seconds: float) -> Death:
        late = [worker for worker in range(1, self._job.count) if worker not in self._at]
        names = ", ".join(map(self._job.worker, late))
        return _death(
            Kind.HUNG, f"worker {names} never came to {self._cases[number]} ({seconds:g} s)"
        )

    def _answer(self, worker: int, message: Message) -> None:
        """Answer a waiting worker, which then waits no longer."""
        del self._at[worker]
        self._listener.workers[worker].tell(message)

    def _tell_all(self, message: Message) -> None:
        for connection in self._listener.workers.values():
            connection.tell(message)

    def _hear(self, seconds: float) -> None:
        for worker, message in self._listener.hear(seconds):
            match message:
                case Hello():
                    self._compare(worker, message.about)
                case At(case) if wire.is_index(case, len(self._cases)):
                    self._at[worker] = case
                case Left():
                    self._at.pop(worker, None)
                case _:  # its end, or what no worker says here
                    self._lose(worker)

    def _lose(self, worker: int) -> None:
        self._at.pop(worker, None)
        self._lost = self._lost or _gone(self._job, worker)

    def _compare(self, worker: int, digest: str) -> None:
        if digest != self._digest:
            names = self._job.worker(worker), self._job.worker(0)
            why = (
                f"worker {names[0]} has other cases than {names[1]}: expected one image and the "
                "same arguments"
            )
            self._tell_all(Stop(why))
            raise BadInputError(why)


class Other:
    """The side of any other worker."""

    def __init__(self, job: Job, cases: Sequence[str], end: float) -> None:
        self._job, self._cases = job, cases
        self._next = 0  # the first case to come to: those before have been given up
        self._lost = ""  # why there is nobody to wait for any more
        self._connection = wire.join(job.address[1], job, _digest(cases), _LINE, end)
        if self._connection is None:
            host, port = job.address
            self._lost = f"worker {job.worker(0)} is gone: nobody answered at {host}:{port}"

    def meet(self, number: int, seconds: float) -> Death | None:
        if self._lost:
            return _death(Kind.CRASHED, self._lost)
        if number < self._next:
            return _death(Kind.HUNG, f"came late: the others are at {self._cases[self._next]}")
        assert self._connection is not None
        self._connection.tell(At(number))
        end = time.monotonic() + 2 * seconds  # the first worker has as long for all the others
        while (left := end - time.monotonic()) > 0:
            for message in self._received(self._connection, left):
                answer = self._understood(message, number)
                if answer is not None:
                    return answer if answer.message else None
        self._connection.tell(Left(number))
        first = self._job.worker(0)
        return _death(
            Kind.HUNG, f"worker {first} never came to {self._cases[number]} ({2 * seconds:g} s)"
        )

    def _received(self, connection: wire.Connection, seconds: float) -> Iterator[Message | None]:
        """Yield the messages that arrive in that time, then None if the connection has ended."""
        connection.socket.settimeout(seconds)
        going_on = connection.receive()
        try:
            yield from connection.lines.messages()
        except MessageError:
            going_on = False
        if not going_on:
            yield None

    def _understood(self, message: Message | None, number: int) -> Death | None:
        """Return the answer for that case, or None if the message answers an earlier one."""
        match message:
            case Stop(why):
                raise BadInputError(why)
            case Go(case) if wire.is_index(case, len(self._cases)):
                return _death(Kind.PASSED, "") if case == number else None
            case No(case, why, kind) if (
                wire.is_index(case, len(self._cases)) and kind in DECLARABLE
            ):
                return _death(kind, why) if case == number else None
            case Late(case) if wire.is_index(case, len(self._cases)):
                if case <= number:
                    return None
                self._next = case
                return _death(Kind.HUNG, f"came late: the others are at {self._cases[case]}")
            case WorkerLost(why):
                self._lost = why
            case _:  # its end, or what no first worker says here
                self._lost = _gone(self._job, 0)
        return _death(Kind.CRASHED, self._lost)


def _digest(cases: Sequence[str]) -> str:
    return wire.digest("\n".join(cases))


def _gone(job: Job, worker: int) -> str:
    return f"worker {job.worker(worker)} is gone: its connection was lost"


def _death(kind: Kind, message: str) -> Death:
    return Death(kind, "", message, "", "")
