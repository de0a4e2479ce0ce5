"""Waiting for all ranks: no rank leaves before the last one has come."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from harness.job.ranks import run_ranks
from harness.model.topology import Target
from harness.oracles import gloo
from suites.shared.backends import BACKENDS

pytestmark = [
    pytest.mark.lanes("virtual-*"),
    pytest.mark.frameworks("torch_xla", "torch_tpu"),
    pytest.mark.topologies("4@chip"),
    pytest.mark.upstream("pytorch/xla#1654"),
]

Times = tuple[float, float]  # of the machine's clock: came, left


def _pass(barrier: Callable[[], object], number: int) -> Times:
    if number == 2:
        time.sleep(0.5)
    came = time.monotonic()
    barrier()
    return came, time.monotonic()


def _check(times: list[Times]) -> None:
    last = max(came for came, _ in times)
    early = [rank for rank, (_, left) in enumerate(times) if left < last]
    assert not early, f"ranks {early} left before the last rank came"


def _over_framework(framework: str, number: int) -> Times:
    ready = torch.ones(1, device=BACKENDS[framework].join())
    dist.all_reduce(ready)  # so that all come about the same time, but for the sleep
    ready.cpu()
    return _pass(dist.barrier, number)


def test_barrier(xla_target: Target) -> None:
    topology, framework = xla_target.topology, xla_target.framework
    _check(gloo.run_ranks(lambda number: _pass(dist.barrier, number), topology.total))
    _check(run_ranks(lambda number: _over_framework(framework, number), topology))
