"""One value of each worker of a job, told to all of them: between the processes of one case."""

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

_LINE = 16 << 20  # bytes
_TRACEBACK = 1 << 16  # characters
_RETRY = 0.05  # seconds

Told = dict[int, wire.Message]


def exchange(compute: Callable[[], Any], job: Job, deadline: float) -> list[Any]:
    """Return the values that ``compute`` has on each worker, in their order, as JSON gives them.

    Raises RankError, on all workers, when it raised on one, or had a value that JSON can't say or
    of more than 16 MiB, with that worker's traceback, or when one did not tell in ``deadline``
    seconds.
    """
    end = time.monotonic() + deadline
    case = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0]
    own = _computed(compute)
    told = (_gather if job.number == 0 else _tell)(job, own, wire.digest(case), end)
    for worker in range(job.count):
        if worker not in told:
            raise RankError(f"worker {job.worker(worker)} told no value in {deadline:g} s")
    for worker in range(job.count):
        if "raised" in told[worker]:
            raise RankError(f"worker {job.worker(worker)} raised\n{told[worker]['raised']}")
    return [told[worker]["value"] for worker in range(job.count)]


def _computed(compute: Callable[[], Any]) -> wire.Message:
    """The value as the others will read it, or the traceback."""
    try:
        line = wire.encode({"value": compute()})
        if len(line) > _LINE:
            raise wire.WireError(f"expected a value of at most {_LINE} bytes of JSON")  # noqa: TRY301
        return wire.decode(line)
    except Exception:
        return {"raised": traceback.format_exc()[-_TRACEBACK:]}


def _is_value(message: wire.Message) -> bool:
    match message:
        case {"value": _} | {"raised": str()}:
            return True
    return False


def _gather(job: Job, own: wire.Message, about: str, end: float) -> Told:
    """The first worker: hears all others, then tells all."""
    told, agreed = {0: own}, set[int]()  # who is at this case, and not at an earlier one
    port = job.address[1] + 1
    try:
        listener = wire.Listener(port, job, _LINE)
    except OSError as error:
        raise RankError(f"worker {job.worker(0)}: port {port}: {error.strerror}") from error
    with listener:
        while len(told) < job.count and (left := end - time.monotonic()) > 0:
            for worker, message in listener.hear(left):
                if message == {"about": about}:
                    agreed.add(worker)
                elif worker in agreed and message is not None and _is_value(message):
                    told[worker] = message
                else:
                    agreed.discard(worker)
                    listener.drop(worker)
        answer = [{"worker": worker, **message} for worker, message in told.items()]
        for worker in agreed:
            seconds = end - time.monotonic()
            listener.workers[worker].tell(*answer, {"all": True}, seconds=seconds)
    return told


def _tell(job: Job, own: wire.Message, about: str, end: float) -> Told:
    """Any other worker: tries until the first one has told all."""
    while (connection := wire.join(job.address[1] + 1, job, about, _LINE, end)) is not None:
        with connection.socket:
            connection.tell(own, seconds=end - time.monotonic())
            told = _told(job, connection, end)
        if told is not None:
            return told
        time.sleep(_RETRY)
    return {job.number: own}


def _told(job: Job, connection: wire.Connection, end: float) -> Told | None:
    """What the first worker has told; None when the connection has ended before."""
    told: Told = {}
    with suppress(wire.WireError):
        for message in connection.messages_until(end):
            if "all" in message:
                return told
            worker = message.get("worker")
            if not wire.is_index(worker, job.count) or not _is_value(message):
                return None
            told[worker] = message
    return None
