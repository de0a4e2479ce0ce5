"""A multi-slice job on one machine: a process for each slice, which discover each other."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

from harness.isolation.ranks import fork_ranks
from harness.topology import Topology

_HOST = "127.0.0.1"


def run_slices(fn: Callable[[int], Any], topology: Topology, *, deadline: float = 50) -> list[Any]:
    """Return ``[fn(0), fn(1), ...]``, each computed by the process of one slice.

    Each process sees the ``topology.devices`` devices of its own slice, whose ``slice_index`` is
    the process's, and its first client waits until every slice has created one. Collectives stay
    inside a process: what slices exchange beyond the discovery goes over the host, as by gloo.

    Args:
        fn: called with the slice's number in a forked process, where no runtime has started.
        topology: of the whole job; the caller must run on lane ``virtual-tpu`` with as many slices.
        deadline: in seconds, for all of them together.

    Raises:
        RankError: the first slice that raised or died, or those that still ran at the deadline. No
            process is left behind.
    """
    address = f"{_HOST}:{free_port()}"

    def slice_process(number: int) -> Any:
        os.environ.update(
            MEGASCALE_SLICE_ID=str(number),
            MEGASCALE_NUM_SLICES=str(topology.slices),
            MEGASCALE_COORDINATOR_ADDRESS=address,
            VIRTUAL_TPU_CHIPS=str(topology.devices),
        )
        return fn(number)

    return fork_ranks(slice_process, topology.slices, deadline=deadline)


def free_port() -> int:
    """A TCP port of this machine that nothing listens on at the moment."""
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
        return port
