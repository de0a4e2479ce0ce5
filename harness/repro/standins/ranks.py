"""Stand-in for ``harness.isolation.ranks``."""

import multiprocessing
import pickle
import textwrap
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
                numbers = ", ".join(map(str, sorted(running.values())))
                raise RankError(f"rank {numbers} of {count} still running after {deadline:g} s")
            for end_of_rank in ready:
                rank = running.pop(end_of_rank)
                values[rank] = _received(end_of_rank, rank, count)
    finally:
        for process in ranks:
            process.kill()
    return [values[rank] for rank in range(count)]


def _report(fn: Callable[[int], Any], rank: int, sender: Connection) -> None:
    try:
        message = pickle.dumps((fn(rank), ""))
    except BaseException as error:
        message = pickle.dumps((None, described(error)))
    sender.send_bytes(message)


def described(error: BaseException) -> str:
    """Return what an error is, and below it where it comes from."""
    why = "".join(traceback.format_exception_only(error)).rstrip()
    where = textwrap.indent("".join(traceback.format_exception(error)), "  ")
    return f"{why}\n{where}"


def _received(receiver: Any, rank: int, count: int) -> Any:
    try:
        value, failure = pickle.loads(receiver.recv_bytes())  # noqa: S301
    except EOFError:
        raise RankError(f"rank {rank} of {count} died") from None
    if failure:
        raise RankError(f"rank {rank} of {count} raised {failure}")
    return value
