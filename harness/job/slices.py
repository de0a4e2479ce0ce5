"""A multi-slice job: one process for each slice on one machine, or one worker for each."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.job import job
from harness.job.exchange import exchange
from harness.job.job import Job
from harness.job.ranks import run_ranks
from harness.model.topology import Topology
from harness.platforms import platform_here


def run_slices(fn: Callable[[int], Any], topology: Topology, *, deadline: float = 50) -> list[Any]:
    """Return ``[fn(0), fn(1), ...]``, each computed by the process of one slice.

    They are the ranks of a job ``@slice``, as ``run_ranks`` starts it: each addresses the devices
    of its own slice and sees all others, and its first client waits until every slice has created
    one.

    In a job whose workers are such slices already, this process computes its own one's value, in
    place, and the values, which JSON must be able to say, are exchanged.

    Args:
        fn: called with the slice's number in a forked process, where no runtime has started.
        topology: of the whole job, which the caller must run on.
        deadline: in seconds, for all of them together.

    Raises:
        RankError: the first slice that raised or died, or those that still ran at the deadline. No
            process is left behind.
    """
    if (real := _real_job(topology)) is not None:
        return _in_place(fn, topology, real, deadline)
    return run_ranks(fn, replace(topology, processes="slice"), deadline=deadline)


def shared_store(path: Path, slices: int, number: int) -> Any:
    """Return a store of torch.distributed for the slices of ``run_slices``.

    It is a file, or upstream's TCPStore on the first host, which accepts whoever reaches its port.
    """
    import torch.distributed as dist

    if (real := job.current()) is None or real.slices != slices:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        return dist.FileStore(str(path), slices)
    host, port = real.address
    return dist.TCPStore(host, port + 2, slices, number == 0)


def _real_job(topology: Topology) -> Job | None:
    """Return the job of which this process is a slice, if it has that many slices.

    A slice of the virtual TPU is one process, so slices of several hosts don't count.
    """
    real = job.current()
    if real is None or real.slices == 1 or real.slices != topology.slices:
        return None
    return real if real.hosts == 1 or "VIRTUAL_TPU_FORWARD" in os.environ else None


def _in_place(
    fn: Callable[[int], Any], topology: Topology, real: Job, deadline: float
) -> list[Any]:
    launch = platform_here().launch
    os.environ |= {
        launch.slice: str(real.slice),
        launch.slices: str(real.slices),
        launch.coordinator: real.coordinator,
        job.TOKEN: real.token,
        "VIRTUAL_TPU_CHIPS": str(topology.chips),
    }
    values = exchange(lambda: fn(real.slice), real, deadline)
    return values[:: real.hosts]
