"""Stand-in for ``harness.isolation.ranks``."""

import multiprocessing
import pickle
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any


class RankError(RuntimeError):
    """A rank raised, died, or was still running at the deadline."""


def fork_ranks(fn: Callable[[int], Any], count: int, *, deadline: float) -> list[Any]:
    """Return [fn(0), ..., fn(count - 1)], each from a forked process."""
    fork = multiprocessing.get_context("fork")
    running: dict[Any, int] = {}
    end, values, ranks = time.monotonic() + deadline, {}, []
    for rank in range(count):
        receiver, sender = fork.Pipe(duplex=False)
        process = fork.Process(target=_report, args=(fn, rank, sender), daemon=True)
        process.start()
        sender.close()
        ranks.append(process)
        running[receiver] = rank
    try:
        while running:
            ready = wait(list(running), max(0.0, end - time.monotonic()))
            if not ready:
                raise RankError(f"ranks {sorted(running.values())} still run after {deadline} s")
            for end_of_rank in ready:
                rank = running.pop(end_of_rank)
                values[rank] = _received(end_of_rank, rank)
    finally:
        for process in ranks:
            process.kill()
    return [values[rank] for rank in range(count)]


def _report(fn: Callable[[int], Any], rank: int, sender: Connection) -> None:
    try:
        message = pickle.dumps((fn(rank), ""))
    except BaseException:
        message = pickle.dumps((None, traceback.format_exc()))
    sender.send_bytes(message)


def _received(receiver: Any, rank: int) -> Any:
    try:
        value, failure = pickle.loads(receiver.recv_bytes())  # noqa: S301
    except EOFError:
        raise RankError(f"rank {rank} died") from None
    if failure:
        raise RankError(f"rank {rank} raised\n{failure}")
    return value
