"""A module's parameters, buffers and inputs in the program that TorchTPU exports, in that order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.distributed as dist

from harness.ir import parse
from harness.job.ranks import run_ranks
from harness.model.topology import Target
from harness.oracles import collectives as oracle
from harness.oracles.replicas import execute
from suites.shared.backends import BACKENDS
from suites.shared.comparison import check_numbers
from suites.shared.tensors import to_torch
from suites.shared.values import ranks_of

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.frameworks("torch_tpu"),
    pytest.mark.topologies("4@chip"),
    pytest.mark.upstream("pytorch/xla#8854"),
]
functional = torch.ops._c10d_functional


@dataclass(frozen=True)
class Values:
    """What one rank has, each of another shape."""

    weight: np.ndarray
    scale: np.ndarray
    x: np.ndarray

    def total(self) -> np.ndarray:
        return self.x * self.scale - self.weight


class _Model(torch.nn.Module):
    def __init__(self, values: Values) -> None:
        super().__init__()
        self.register_buffer("scale", to_torch(values.scale))
        self.weight = torch.nn.Parameter(to_torch(values.weight))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = functional.all_reduce(x * self.scale - self.weight, "sum", _world())
        return functional.wait_tensor(total)


def _world() -> str:
    assert dist.group.WORLD is not None
    return str(dist.group.WORLD.group_name)


def _values(ranks: int) -> list[Values]:
    return [Values(part[:1], part[1], part[2:]) for part in ranks_of(ranks, (6, 3))]


def test_order(xla_target: Target) -> None:
    backend, values = BACKENDS[xla_target.framework], _values(xla_target.topology.total)

    def export(number: int) -> bytes:
        from torch_tpu._internal.export import exported_to_mlir

        device, own = backend.join(), values[number]
        exported = torch.export.export(_Model(own).to(device), (to_torch(own.x).to(device),))
        artifact: bytes = exported_to_mlir(exported).serialize_portable_artifact()
        backend.settle()
        return artifact

    artifacts = run_ranks(export, xla_target.topology)
    arguments = [(own.weight, own.scale, own.x) for own in values]
    results = execute(parse(artifacts[0]), arguments)
    check_numbers(results, oracle.all_reduce([own.total() for own in values], "sum"))
