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
