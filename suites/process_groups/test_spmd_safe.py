"""Regions of TorchTPU that all ranks pass alike: collectives may be fused with what is around."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist

from harness.job.ranks import run_ranks
from harness.lanes.events import EventLog
from harness.model.topology import Target
from harness.oracles import collectives as oracle
from suites.process_groups.jobs import check
from suites.shared.backends import BACKENDS
from suites.shared.tensors import to_numpy, to_torch
from suites.shared.values import ranks_of

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.frameworks("torch_tpu"),
    pytest.mark.topologies("4@chip"),
    pytest.mark.upstream("pytorch/xla#9315"),
]


def _step(x: torch.Tensor) -> torch.Tensor:
    y = x * 5
    dist.all_reduce(y)
    return y - 3


def _executed(target: Target, events: EventLog, *, safe: bool) -> int:
    """Check the step's numbers on each rank, and count the programs that one rank executed."""
    inputs, backend = ranks_of(target.topology.total, (4, 3)), BACKENDS[target.framework]
    before = events.read()

    def rank(number: int) -> np.ndarray:
        device = backend.join()
        torch.tpu.eager_mode = torch.tpu.EagerMode.DEFER_AND_FUSE  # otherwise nothing is fused
        step = torch.tpu.distributed.spmd_safe(_step) if safe else _step
        return to_numpy(step(to_torch(inputs[number]).to(device)))

    total = oracle.all_reduce(inputs, "sum")[0]
    check(run_ranks(rank, target.topology), [5 * total - 3] * len(inputs))
    executed = events.read().after(before).of("execute")
    return len(executed) // target.topology.total


def test_region(xla_target: Target, tpu_events: EventLog) -> None:
    """The same numbers, from fewer programs."""
    apart = _executed(xla_target, tpu_events, safe=False)
    together = _executed(xla_target, tpu_events, safe=True)
    assert (apart, together) == (3, 1)


def test_around_a_region(xla_target: Target, tpu_events: EventLog) -> None:
    """What is before and behind a region is not fused with it, nor are collectives there."""
    inputs, backend = ranks_of(xla_target.topology.total, (4, 3)), BACKENDS[xla_target.framework]
    before = tpu_events.read()

    @torch.tpu.distributed.spmd_safe
    def fails(x: torch.Tensor) -> torch.Tensor:
        raise ValueError(x.shape)

    @torch.tpu.distributed.spmd_safe
    def step(x: torch.Tensor, on_host: torch.Tensor, *, by: float) -> tuple[torch.Tensor, int]:
        """Document it."""
        return _step(x) * by, int(on_host.sum())

    def rank(number: int) -> np.ndarray:
        device = backend.join()
        torch.tpu.eager_mode = torch.tpu.EagerMode.DEFER_AND_FUSE
        assert (step.__name__, step.__doc__) == ("step", "Document it.")
        x = to_torch(inputs[number]).to(device)
        y, count = step(x * 2, torch.ones(3), by=2.0)  # two programs: the product, and the region
        y = y + count
        dist.all_reduce(y)  # two: the sum before it, and the collective
        with pytest.raises(ValueError, match="Size"):
            fails(y)
        dist.all_reduce(y)
        return to_numpy(y - 1)  # two: also after a region that failed, it is apart

    total = oracle.all_reduce(inputs, "sum")[0]
    expected = 4 * 4 * ((10 * total - 3) * 2 + 3) - 1
    check(run_ranks(rank, xla_target.topology), [expected] * len(inputs))
    executed = tpu_events.read().after(before).of("execute")
    assert len(executed) / xla_target.topology.total == 6


@pytest.mark.parametrize("root", [0, 3])
def test_broadcast_in_a_region(xla_target: Target, root: int) -> None:
    """All ranks run the same collectives, also where only the root passes on what it has."""
    inputs, backend = ranks_of(xla_target.topology.total, (4, 3)), BACKENDS[xla_target.framework]

    @torch.tpu.distributed.spmd_safe
    def step(x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x)
        dist.broadcast(x, root)
        return x + 1

    def rank(number: int) -> np.ndarray:
        device = backend.join()
        torch.tpu.eager_mode = torch.tpu.EagerMode.DEFER_AND_FUSE
        return to_numpy(step(to_torch(inputs[number]).to(device)))

    total = oracle.all_reduce(inputs, "sum")[0]
    check(run_ranks(rank, xla_target.topology), [total + 1] * len(inputs))
