"""Any Python objects between ranks, which torch.distributed pickles into tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist

from harness.job.ranks import run_ranks
from harness.model.topology import Target
from harness.oracles import gloo
from suites.shared.backends import BACKENDS

pytestmark = [
    pytest.mark.lanes("virtual-*"),
    pytest.mark.frameworks("torch_xla", "torch_tpu"),
    pytest.mark.topologies("4@chip"),
    pytest.mark.upstream("pytorch/xla#5492"),
]

OBJECTS = ["a", {"b": [1, 2]}, None, "much longer than the others"]


def _gathered(rank: int) -> list[Any]:
    gathered: list[Any] = [None] * len(OBJECTS)
    dist.all_gather_object(gathered, OBJECTS[rank])
    return gathered


def _broadcast(rank: int) -> list[Any]:
    objects = OBJECTS if rank == 1 else [None] * len(OBJECTS)
    dist.broadcast_object_list(objects, 1)
    return objects


@pytest.mark.parametrize("program", [_gathered, _broadcast], ids=["all_gather", "broadcast"])
def test_objects(xla_target: Target, program: Any) -> None:
    def ask(rank: int) -> list[Any]:
        backend = BACKENDS[xla_target.framework]
        backend.join()
        received = program(rank)
        backend.settle()
        return received

    everywhere = [OBJECTS] * xla_target.topology.total
    assert gloo.run_ranks(program, xla_target.topology.total) == everywhere
    assert run_ranks(ask, xla_target.topology) == everywhere
