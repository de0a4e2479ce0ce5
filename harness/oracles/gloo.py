"""Real collectives on a CPU: a function run by processes that share a gloo process group."""

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from harness.isolation.ranks import RankError, fork_ranks

__all__ = ["RankError", "run_ranks"]


@dataclass(frozen=True)
class _Group:
    """A process group to be: how many ranks meet at which file, and for how long, in seconds."""

    size: int
    store: Path
    timeout: float

    def join(self, rank: int) -> None:
        # Without it gloo resolves the host's name, which a container often can't.
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        dist.init_process_group(
            "gloo",
            store=dist.FileStore(str(self.store), self.size),
            rank=rank,
            world_size=self.size,
            timeout=timedelta(seconds=self.timeout),
        )


def run_ranks(
    fn: Callable[..., Any], world_size: int, *args: Any, deadline: float = 30.0
) -> list[Any]:
    """Return ``[fn(0, *args), ..., fn(world_size - 1, *args)]``, each from a process of its own.

    The processes are forked, so ``fn`` may be any callable; its results must be picklable. In
    each, ``torch.distributed`` is initialised with the gloo backend. The caller must not have
    started a PJRT client or other threads: a fork after that hangs.

    Raises:
        RankError: with the rank and its traceback or stack. The other ranks are killed; none
            outlives this call.
    """
    with tempfile.TemporaryDirectory(prefix="gloo-") as folder:
        group = _Group(world_size, Path(folder, "store"), deadline)

        def run(rank: int) -> Any:
            torch.set_num_threads(1)
            group.join(rank)
            value = fn(rank, *args)
            # A rank that leaves early breaks the connections that others still use.
            dist.barrier()
            return value

        return fork_ranks(run, world_size, deadline=deadline)
