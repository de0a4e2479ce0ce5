"""TorchTPU's mesh of one dimension over one slice is a ring of neighbours."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from harness.job.ranks import run_ranks
from harness.model.topology import Target
from suites.shared.backends import BACKENDS

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.frameworks("torch_tpu"),
    pytest.mark.topologies("4@chip"),
    pytest.mark.upstream("pytorch/xla#9315"),
]
Chip = tuple[int, ...]  # where it is in the slice


def test_neighbours(xla_target: Target) -> None:
    def rank(_: int) -> tuple[list[int], list[Chip]]:
        from torch_tpu._internal.distributed import tpu_distributed

        backend = BACKENDS[xla_target.framework]
        backend.join()
        mesh = torch.tpu.distributed.topology_aware_mesh((xla_target.topology.total,)).tolist()
        chips = [tuple(chip.coords) for chip in tpu_distributed.global_device_attributes()]
        backend.settle()
        return mesh, chips

    answers = run_ranks(rank, xla_target.topology)
    mesh, chips = answers[0]
    assert answers == [(mesh, chips)] * xla_target.topology.total
    assert sorted(mesh) == list(range(xla_target.topology.total))
    assert len(set(chips)) == len(chips)
    steps = [_steps(chips[a], chips[b]) for a, b in pairwise([*mesh, mesh[0]])]
    assert steps == [1] * len(mesh), f"steps from chip to chip: {steps}, by ranks {mesh}"


def _steps(a: Chip, b: Chip) -> int:
    return sum(abs(x - y) for x, y in zip(a, b, strict=True))
