"""Stand-in for ``harness.oracles.gloo``."""

import os
import tempfile
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from harness.repro.standins.ranks import RankError, fork_ranks

__all__ = ["RankError", "run_ranks"]


def run_ranks(
    fn: Callable[..., Any], world_size: int, *args: Any, deadline: float = 30.0
) -> list[Any]:
    """Return [fn(0, *args), ...], each from a forked process of one gloo process group."""
    with tempfile.TemporaryDirectory() as folder:

        def run(rank: int) -> Any:
            torch.set_num_threads(1)
            os.environ["GLOO_SOCKET_IFNAME"] = "lo"
            dist.init_process_group(
                "gloo",
                store=dist.FileStore(f"{folder}/store", world_size),
                rank=rank,
                world_size=world_size,
                timeout=timedelta(seconds=deadline),
            )
            value = fn(rank, *args)
            dist.barrier()  # who leaves early breaks the connections that others still use
            return value

        return fork_ranks(run, world_size, deadline=deadline)
