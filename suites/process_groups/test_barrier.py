"""Waiting for all ranks: no rank leaves before the last one has come."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch.distributed as dist
from torch_xla.core import xla_model as xm

from harness.job.ranks import run_ranks
from harness.model.topology import Topology
from harness.oracles import gloo
from suites.process_groups.jobs import join_group

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
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


def _over_xla(barrier: Callable[[], object], number: int) -> Times:
    join_group()
    xm.rendezvous("ready")  # so that all come about the same time, but for the sleep
    return _pass(barrier, number)


def test_barrier(topology: Topology) -> None:
    _check(gloo.run_ranks(lambda number: _pass(dist.barrier, number), topology.total))
    _check(run_ranks(lambda number: _over_xla(dist.barrier, number), topology))


def test_rendezvous(topology: Topology) -> None:
    _check(run_ranks(lambda n: _over_xla(lambda: xm.rendezvous("here"), n), topology))


def test_payloads(topology: Topology) -> None:
    """Each rank's bytes, of any length and none, reach all ranks."""

    def ask(number: int) -> list[bytes]:
        join_group()
        received: list[bytes] = xm.rendezvous("payload", bytes(range(number)))
        return received

    sent = [bytes(range(rank)) for rank in range(topology.total)]
    assert run_ranks(ask, topology) == [sent] * topology.total
