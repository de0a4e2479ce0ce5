"""A job of several processes on one machine, forked from a process that has loaded everything."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.errors import BadInputError
from harness.isolation.ranks import RankError, fork_ranks
from harness.job.environment import JobEnvironment
from harness.lanes import events
from harness.lanes.events import EventLog, Events
from harness.lanes.virtual import library, process
from harness.model.topology import Topology
from harness.platforms import platform_here


def run_ranks(fn: Callable[[int], Any], topology: Topology, *, deadline: float = 50) -> list[Any]:
    """Return ``[fn(0), fn(1), ...]``, each computed by one process of the topology's job.

    The topology says how many there are, and which devices each has: ``4@chip``, ``2x4@host``. A
    process addresses its own devices and sees all others; programs may run over any of them.
    Each is forked from this process, so what is imported here need not be imported again.

    Args:
        fn: called with the process's number, from 0, where no runtime has started.
        topology: of the whole job.
        deadline: in seconds, for all of them together.

    Raises:
        BadInputError: the topology has one process only.
        RankError: the first rank that raised or died, or those that still ran at the deadline. No
            process is left behind.
    """
    if not topology.processes:
        raise BadInputError(f"run_ranks: topology {topology}: expected @chip, @host or @slice")
    environment = JobEnvironment(topology, platform_here())

    def rank(number: int) -> Any:
        os.environ.update(environment.of(number))
        value = fn(number)
        process.settle()
        return value

    path = os.environ.get(events.VARIABLE)
    log = EventLog(Path(path)) if path else None
    with library.shared_compilations():
        try:
            return fork_ranks(rank, topology.process_count, deadline=deadline)
        except RankError as error:
            if log is None:
                raise
            recorded = log.read()
            for event in recorded.of("failed")[:1]:  # the test is given the reason with this error
                events.write("seen", {}, stack=event.stack)
            message = _with_reason(error, recorded)
            raise RankError(message, error.process, died=error.died) from None


def _with_reason(error: RankError, events: Events) -> str:
    """Return the error's message and the whole reason why the job can't go on, if there is one.

    A rank that knew the reason when it ended is only a victim: then the reason comes first. The
    runtime of JAX ends such ranks with messages of its own.
    """
    message, failed = str(error), events.of("failed")
    reason = (failed[0].stack or "") if failed else ""
    if not reason or reason in message:
        return message
    summary = reason.partition("\n")[0]
    if summary in message or all(event.process != error.process for event in failed):
        return f"{message}\n{reason}"
    return f"{reason}\n{message}"
