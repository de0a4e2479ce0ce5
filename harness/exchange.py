"""One value of each worker of a job, told to all of them: between the processes of one case."""

from __future__ import annotations

import json
import os
import socket
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from harness.isolation.ranks import RankError
from harness.job import Job

_RETRY = 0.05  # seconds


def exchange(compute: Callable[[], Any], job: Job, deadline: float) -> list[Any]:
    """Return the values that ``compute`` has on each worker, in their order.

    Raises RankError, on all workers, when it raised on one, with that worker's traceback, or when
    one did not tell in ``deadline`` seconds. TypeError for a value that JSON can't say.
    """
    end = time.monotonic() + deadline
    case = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0]
    own: dict[str, Any] = {"worker": job.number, "case": case}
    try:
        own["value"] = compute()
        json.dumps(own)
    except Exception:
        own.pop("value", None)
        own["raised"] = traceback.format_exc()
    told = _gather(job, own, end) if job.number == 0 else _tell(job, own, end)
    for worker, one in enumerate(told):
        if one is None:
            raise RankError(f"worker {job.worker(worker)} told no value in {deadline:g} s")
    if raised := [one for one in told if one and "raised" in one]:
        (first, *_) = raised
        raise RankError(f"worker {job.worker(first['worker'])} raised\n{first['raised']}")
    return [one and one["value"] for one in told]


def _gather(job: Job, own: dict[str, Any], end: float) -> list[dict[str, Any] | None]:
    """The first worker: hears all others, then tells all; None for one that never came."""
    told: list[dict[str, Any] | None] = [own, *[None] * (job.count - 1)]
    answers: list[socket.socket] = []
    with socket.create_server(("", job.address[1] + 1), backlog=job.count) as listener:
        while None in told and (left := end - time.monotonic()) > 0:
            listener.settimeout(left)
            with suppress(TimeoutError):
                line, peer = _heard(listener, end)
                if line and line["case"] == own["case"]:
                    told[line["worker"]] = line
                    answers.append(peer)
                else:  # of an earlier case, or of no worker
                    peer.close()
        for peer in answers:
            with suppress(OSError), peer:
                peer.sendall(json.dumps(told).encode() + b"\n")
    return told


def _heard(listener: socket.socket, end: float) -> tuple[dict[str, Any] | None, socket.socket]:
    peer, _ = listener.accept()
    peer.settimeout(max(end - time.monotonic(), _RETRY))
    with suppress(OSError, ValueError), peer.makefile("rb") as lines:
        line: dict[str, Any] = json.loads(lines.readline())
        return line, peer
    return None, peer


def _tell(job: Job, own: dict[str, Any], end: float) -> list[dict[str, Any] | None]:
    """Any other worker: tries until the first one hears it."""
    host, port = job.address
    while (left := end - time.monotonic()) > 0:
        with (
            suppress(OSError, ValueError),
            socket.create_connection((host, port + 1), timeout=left) as peer,
        ):
            peer.sendall(json.dumps(own).encode() + b"\n")
            with peer.makefile("rb") as lines:
                told: list[dict[str, Any] | None] = json.loads(lines.readline())
                return told
        time.sleep(_RETRY)
    return [None, *[own] * (job.count - 1)]
