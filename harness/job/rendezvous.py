"""All workers of a job start the same case together, or none of them starts it.

Before each case the first worker awaits all others, and lets them go. One that was held up, by a
case that hung there, finds the others further on, gives up the cases in between and joins them: so
a hang costs as many cases as its deadline is long, not the rest of the run.

A worker says ``at`` with a case's number, or ``left`` when it gives up waiting. It is told ``go``,
``no`` with the reason, ``late`` with the number of the case that the others are at, ``lost`` when a
worker has died, after which nobody waits any more, or ``stop`` when one has other cases than the
first worker. No thread waits here: this process forks.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Protocol

from harness.errors import BadInputError
from harness.isolation.evidence import Death
from harness.job import wire
from harness.job.job import Job
from harness.model.outcome import DECLARABLE, Kind

_FIRST = 10  # times the patience until all have come for the first time: a node may still start
_LINE = 1 << 16  # bytes


class Rendezvous(Protocol):
    """One worker's side."""

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
    """The first worker: listens, and never lets anybody start alone."""

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
        while (found := self._look(number)) is None:
            if (left := end - time.monotonic()) <= 0:  # however much a stranger has to say
                found = self._never_came(number, seconds)
                break
            self._hear(left)
        answer = {"no": number, "why": found.message, "kind": found.kind} if found.message else {}
        for worker in [worker for worker, at in self._at.items() if at == number]:
            self._answer(worker, answer or {"go": number})
        return found if found.message else None

    def _look(self, number: int) -> Death | None:
        """What can be said without waiting: a reason against, one without a message for "go"."""
        if self._lost:
            self._tell_all({"lost": self._lost})
            return _death(Kind.CRASHED, self._lost)
        for worker, at in sorted(self._at.items()):
            if at < number:
                self._answer(worker, {"late": number})
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

    def _answer(self, worker: int, message: wire.Message) -> None:
        """What ends a worker's wait."""
        del self._at[worker]
        self._listener.workers[worker].tell(message)

    def _tell_all(self, message: wire.Message) -> None:
        for connection in self._listener.workers.values():
            connection.tell(message)

    def _hear(self, seconds: float) -> None:
        for worker, message in self._listener.hear(seconds):
            match message:
                case {"about": digest}:
                    self._compare(worker, digest)
                case {"at": number} if wire.is_index(number, len(self._cases)):
                    self._at[worker] = number
                case {"left": _}:
                    self._at.pop(worker, None)
                case _:  # its end, or what no worker says
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
            self._tell_all({"stop": why})
            raise BadInputError(why)


class Other:
    """Any other worker."""

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
        self._connection.tell({"at": number})
        end = time.monotonic() + 2 * seconds  # the first worker has as long for all the others
        while (left := end - time.monotonic()) > 0:
            for message in self._received(self._connection, left):
                answer = self._understood(message, number)
                if answer is not None:
                    return answer if answer.message else None
        self._connection.tell({"left": number})
        first = self._job.worker(0)
        return _death(
            Kind.HUNG, f"worker {first} never came to {self._cases[number]} ({2 * seconds:g} s)"
        )

    def _received(
        self, connection: wire.Connection, seconds: float
    ) -> Iterator[wire.Message | None]:
        """What has come in that time, None for the end."""
        connection.socket.settimeout(seconds)
        going_on = connection.receive()
        try:
            yield from connection.messages()
        except wire.WireError:
            going_on = False
        if not going_on:
            yield None

    def _understood(self, message: wire.Message | None, number: int) -> Death | None:
        """The answer for that case; None for what answers an earlier one."""
        match message:
            case {"stop": str(why)}:
                raise BadInputError(why)
            case {"go": given} if wire.is_index(given, len(self._cases)):
                return _death(Kind.PASSED, "") if given == number else None
            case {"no": given, "why": str(why), "kind": str(kind)} if (
                wire.is_index(given, len(self._cases)) and kind in DECLARABLE
            ):
                return _death(Kind(kind), why) if given == number else None
            case {"late": given} if wire.is_index(given, len(self._cases)):
                if given <= number:
                    return None
                self._next = given
                return _death(Kind.HUNG, f"came late: the others are at {self._cases[given]}")
            case {"lost": str(why)}:
                self._lost = why
            case _:  # its end, or what no first worker says
                self._lost = _gone(self._job, 0)
        return _death(Kind.CRASHED, self._lost)


def _digest(cases: Sequence[str]) -> str:
    return wire.digest("\n".join(cases))


def _gone(job: Job, worker: int) -> str:
    return f"worker {job.worker(worker)} is gone: its connection was lost"


def _death(kind: Kind, message: str) -> Death:
    return Death(kind, "", message, "", "")
