"""Forks processes that compute one value each, and raises a clear error when one of them fails."""

import faulthandler
import os
import pickle
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from harness.diagnosis.signature import with_name_joined
from harness.isolation import libc
from harness.isolation.thread_limits import out_of_threads

_STACK_GRACE = 1.0  # seconds a rank has to write its stack after SIGABRT


class RankError(RuntimeError):
    """A rank raised, died, or was still running at the deadline. The message names the rank.

    Attributes:
        process: the one that raised or died; 0 if ranks were late.
        died: by a signal.
    """

    def __init__(self, message: str, process: int = 0, *, died: bool = False) -> None:
        super().__init__(message)
        self.process = process
        self.died = died


@dataclass(frozen=True)
class _Rank:
    """A forked process, and the memory files that its result and its stack go to."""

    number: int
    pid: int
    pidfd: int
    result: int
    stack: int

    def close(self) -> None:
        for descriptor in (self.pidfd, self.result, self.stack):
            os.close(descriptor)


@dataclass(frozen=True)
class _Result:
    """Result of a rank: its value, or the exception that it raised, with the traceback."""

    time: float  # of the machine's monotonic clock
    value: Any = None
    raised: str = ""


@dataclass(frozen=True)
class _RankEnd:
    """End of a rank. A rank that died reports no time, so it counts as the first."""

    failure: str
    value: Any = None
    time: float = 0.0
    process: int = 0
    died: bool = False  # by a signal


def fork_ranks(fn: Callable[[int], Any], count: int, *, deadline: float) -> list[Any]:
    """Return ``[fn(0), ..., fn(count - 1)]``, each from a forked process.

    Raises:
        RankError: the first rank to fail, with its traceback or stack, or all that still run after
            ``deadline`` seconds. The others are killed; none outlives this call, nor the caller.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    end = time.monotonic() + deadline
    ranks: list[_Rank] = []
    try:
        for number in range(count):  # one by one: if a fork fails, the earlier ones must end
            ranks.append(_fork(fn, number, count))  # noqa: PERF401
        return _results(ranks, end, deadline)
    finally:
        _kill(ranks)


def _fork(fn: Callable[[int], Any], number: int, count: int) -> _Rank:
    result = os.memfd_create(f"rank-{number}-result")
    stack = os.memfd_create(f"rank-{number}-stack")
    parent = os.getpid()
    try:
        pid = os.fork()
    except BlockingIOError as error:
        os.close(result)
        os.close(stack)
        raise RankError(f"rank {number} of {count} can't be started: {out_of_threads()}") from error
    if pid == 0:
        try:
            libc.die_with_parent(parent)
            faulthandler.enable(stack)
            _report(result, lambda: fn(number))
        finally:
            os._exit(1)
    return _Rank(number, pid, os.pidfd_open(pid), result, stack)


def _report(descriptor: int, call: Callable[[], Any]) -> NoReturn:
    """Write the result to the descriptor and end the process.

    As a pickle, since a value may be any object, and only this process has the descriptor.
    """
    try:
        value = call()
        message = pickle.dumps(_Result(time.monotonic(), value))
    except BaseException as error:
        # What it is comes first: a summary shows no more. Only an assertion says in further lines
        # what differs; the report of a job that can't go on would be there twice.
        why = with_name_joined("".join(traceback.format_exception_only(error)).rstrip())
        if not isinstance(error, AssertionError):
            why = why.partition("\n")[0]
        raised = f"{why}\n{traceback.format_exc()}"
        message = pickle.dumps(_Result(time.monotonic(), raised=raised))
    with open(descriptor, "wb", closefd=False) as file:
        file.write(message)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _results(ranks: list[_Rank], end: float, deadline: float) -> list[Any]:
    """Wait for all ranks. The first to fail is the cause: the others only lost a peer."""
    outcomes: dict[int, _RankEnd] = {}
    running = {rank.pidfd: rank for rank in ranks}
    poll = select.poll()
    for descriptor in running:
        poll.register(descriptor, select.POLLIN)
    while running:
        ready = poll.poll(max(0.0, end - time.monotonic()) * 1000)
        if not ready:
            raise RankError(_late(list(running.values()), len(ranks), deadline))
        for descriptor, _ in ready:
            poll.unregister(descriptor)
            rank = running.pop(descriptor)
            outcomes[rank.number] = _outcome(rank, len(ranks))
        if failed := [outcome for outcome in outcomes.values() if outcome.failure]:
            first = min(failed, key=lambda outcome: outcome.time)
            raise RankError(first.failure, first.process, died=first.died)
    return [outcomes[rank.number].value for rank in ranks]


def _outcome(rank: _Rank, count: int) -> _RankEnd:
    who = f"rank {rank.number} of {count}"
    _, status = os.waitpid(rank.pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        name = signal.Signals(-code).name
        stack = _content(rank.stack).decode()
        return _RankEnd(f"{who} was killed by {name}\n{stack}", process=rank.pid, died=True)
    if not (message := _content(rank.result)):
        return _RankEnd(f"{who} left with exit status {code} and no result", process=rank.pid)
    left: _Result = pickle.loads(message)  # noqa: S301  # of a process of our own
    failure = f"{who} raised {left.raised}" if left.raised else ""
    return _RankEnd(failure, left.value, left.time, rank.pid)


def _late(running: list[_Rank], count: int, deadline: float) -> str:
    numbers = ", ".join(str(rank.number) for rank in running)
    for rank in running:
        with suppress(ProcessLookupError):
            os.kill(rank.pid, signal.SIGABRT)
    for rank in running:
        select.select([rank.pidfd], [], [], _STACK_GRACE)
    stacks = "\n".join(f"rank {r.number}:\n{_content(r.stack).decode()}" for r in running)
    return f"rank {numbers} of {count} still running after {deadline:g} s\n{stacks}"


def _content(descriptor: int) -> bytes:
    os.lseek(descriptor, 0, os.SEEK_SET)
    with open(descriptor, "rb", closefd=False) as file:
        return file.read()


def _kill(ranks: list[_Rank]) -> None:
    for rank in ranks:
        with suppress(ChildProcessError):
            if os.waitpid(rank.pid, os.WNOHANG) == (0, 0):
                os.kill(rank.pid, signal.SIGKILL)
                os.waitpid(rank.pid, 0)
        rank.close()
