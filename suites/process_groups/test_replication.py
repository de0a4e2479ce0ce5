"""Helpers of torch_xla.distributed.xla_multiprocessing: models, turns, and orders of chips."""

from __future__ import annotations

import pytest
import torch
import torch_xla.runtime as xr
from torch_xla.distributed import xla_multiprocessing as xmp

from harness.model.topology import Topology
from harness.session.fixtures import StartRuntime
from suites.shared.torch_xla_releases import since_2_9

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.upstream("pytorch/xla#3824"),
    since_2_9,
]


@pytest.mark.topologies("v6e:2x4", "v5p:2x2x2", "v6e:2x2", "v5p:2x2x1", "v5e:2x4")
def test_ring(topology: Topology, start_runtime: StartRuntime) -> None:
    """Where there is an order of the chips, each chip is beside the next one, around the ring."""
    start_runtime(spmd=True)
    groups = xmp.create_optimized_replica_groups()
    if topology.devices < 8 or "v5e" in str(topology):
        assert groups is None
        return
    (ring,) = groups
    places = [each["coords"] for each in xr.global_runtime_device_attributes()]
    assert sorted(ring) == list(range(8))
    hops = [
        sum(abs(a - b) for a, b in zip(places[chip], places[after], strict=True))
        for chip, after in zip(ring, [*ring[1:], ring[0]], strict=True)
    ]
    assert hops == [1] * 8


@pytest.mark.topologies("1x1")
def test_one_process(start_runtime: StartRuntime) -> None:
    start_runtime(spmd=False)
    model = torch.nn.Linear(2, 2)
    wrapper = xmp.MpModelWrapper(model)
    assert wrapper.to("xla:0") is model
    assert {str(p.device) for p in model.parameters()} == {"xla:0"}
    assert xmp.MpSerialExecutor().run(lambda: 3) == 3
    answers: list[tuple[int, str]] = []
    xmp.spawn(lambda rank, name: answers.append((rank, name)), args=("x",), nprocs=1)
    assert answers == [(0, "x")]
