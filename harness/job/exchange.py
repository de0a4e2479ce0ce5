"""Exchanges one value of each worker of a job between all workers, while they run one case."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from harness.isolation.ranks import RankError
from harness.job import wire
from harness.job.job import Job
from harness.messages.framing import decode, encode
from harness.messages.jobs import All, Hello, Value
from harness.messages.typed import MessageError

_LINE = 16 << 20  # bytes
_TRACEBACK = 1 << 16  # characters
_RETRY = 0.05  # seconds

Told = dict[int, Value]


def exchange(compute: Callable[[], Any], job: Job, deadline: float) -> list[Any]:
    """Return the values that ``compute`` has on each worker, in their order, as JSON gives them.

    Raises RankError, on all workers, when it raised on one, or had a value that JSON can't say or
    of more than 16 MiB, with that worker's traceback, or when one did not tell in ``deadline``
    seconds.
    """
    end = time.monotonic() + deadline
    case = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0]
    own = _computed(job.number, compute)
    received = (_gather if job.number == 0 else _tell)(job, own, wire.digest(case), end)
    for worker in range(job.count):
        if worker not in received:
            raise RankError(f"worker {job.worker(worker)} told no value in {deadline:g} s")
    for worker in range(job.count):
        if raised := received[worker].raised:
            raise RankError(f"worker {job.worker(worker)} raised\n{raised}")
    return [received[worker].value for worker in range(job.count)]


def _computed(worker: int, compute: Callable[[], Any]) -> Value:
    """Return the value as the others get it after JSON, or the traceback."""
    try:
        line = encode(Value(worker, compute(), None))
        if len(line) > _LINE:
            raise MessageError(f"expected a value of at most {_LINE} bytes of JSON")  # noqa: TRY301
        return Value(worker, decode(line)["value"], None)
    except Exception:
        return Value(worker, None, traceback.format_exc()[-_TRACEBACK:])


def _gather(job: Job, own: Value, about: str, end: float) -> Told:
    """Collect the values of all workers, then send them to all. The first worker does this."""
    received, agreed = {0: own}, set[int]()  # who is at this case, and not at an earlier one
    port = job.address[1] + 1
    try:
        listener = wire.Listener(port, job, _LINE)
    except OSError as error:
        raise RankError(f"worker {job.worker(0)}: port {port}: {error.strerror}") from error
    with listener:
        while len(received) < job.count and (left := end - time.monotonic()) > 0:
            for worker, message in listener.hear(left):
                match message:
                    case Hello() if message.about == about:
                        agreed.add(worker)
                    case Value() if worker in agreed and message.worker == worker:
                        received[worker] = message
                    case _:
                        agreed.discard(worker)
                        listener.drop(worker)
        for worker in agreed:
            seconds = end - time.monotonic()
            listener.workers[worker].tell(*received.values(), All(), seconds=seconds)
    return received


def _tell(job: Job, own: Value, about: str, end: float) -> Told:
    """Any other worker: tries until the first one has told all."""
    while (connection := wire.join(job.address[1] + 1, job, about, _LINE, end)) is not None:
        with connection.socket:
            connection.tell(own, seconds=end - time.monotonic())
            received = _told(job, connection, end)
        if received is not None:
            return received
        time.sleep(_RETRY)
    return {job.number: own}


def _told(job: Job, connection: wire.Connection, end: float) -> Told | None:
    """Return what the first worker sent, or None if the connection ended before."""
    received: Told = {}
    with suppress(MessageError):
        for message in connection.messages_until(end):
            match message:
                case All():
                    return received
                case Value() if wire.is_index(message.worker, job.count):
                    received[message.worker] = message
                case _:
                    return None
    return None
