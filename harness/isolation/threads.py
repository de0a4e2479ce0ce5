"""Checks that the process that forks has started nothing: a fork copies only one thread."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from harness.frameworks import FRAMEWORKS


class NotForkableError(RuntimeError):
    """The process has threads that a child would miss, or a runtime; the message names them."""


def native_threads() -> dict[int, str]:
    """Return the names of this process's threads, by kernel id."""
    tasks = Path("/proc/self/task")
    return {int(task.name): (task / "comm").read_text().strip() for task in tasks.iterdir()}


def started_runtimes() -> list[str]:
    """Return the clients that frameworks have in this process, such as ``JAX's cpu``.

    Starts and imports nothing. Processes forked from this one would keep the clients, whatever lane
    they are for.
    """
    return [client for framework in FRAMEWORKS.values() for client in framework.clients()]


def refuse_started_runtimes() -> None:
    """Raise NotForkableError if a framework has a client in this process already."""
    if started := started_runtimes():
        raise NotForkableError(
            f"process {os.getpid()} has started {' and '.join(started)} client, which every test "
            "would keep, whatever its lane and topology. Something touched a device while a "
            "conftest.py, a plugin or tests were imported; move it into the test or a fixture."
        )


class ForkGuard:
    """Remembers the threads there were at the start and refuses a fork when there are more.

    Those of the start are the main thread and, in a pytest-xdist worker, execnet's receiver. The
    receiver only ever blocks in ``read`` without a lock that a child needs.
    """

    def __init__(self) -> None:
        self._known = set(native_threads())

    def check(self) -> None:
        """Raise NotForkableError if a thread was started since, or a framework's client ever."""
        refuse_started_runtimes()
        names = {thread.native_id: thread.name for thread in threading.enumerate()}
        new = {
            number: names.get(number, comm)
            for number, comm in native_threads().items()
            if number not in self._known
        }
        if new:
            listed = ", ".join(sorted(new.values()))
            raise NotForkableError(
                f"process {os.getpid()} has started threads, so a case can't be forked from it: "
                f"{listed}. Something touched a device, a thread pool or a process group while "
                "tests were imported or collected; move it into the test or a fixture."
            )
