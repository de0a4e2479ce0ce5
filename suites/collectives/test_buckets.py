"""Collectives of many tensors in buckets: which tensors travel together, and what arrives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch_xla.core import xla_model as xm

from harness.ir import Program
from harness.oracles import collectives as oracle
from harness.session.fixtures import StartRuntime
from suites.collectives.checks import check_groups
from suites.collectives.programs import trace
from suites.shared.comparison import check_numbers
from suites.shared.groups import layout, lists
from suites.shared.torch_xla_releases import since_2_9
from suites.shared.values import columns

pytestmark = [
    pytest.mark.lanes("cpu", "virtual-*"),
    pytest.mark.topologies(4),
    pytest.mark.upstream("pytorch/xla#3431"),
]

# KiB of float32 for buckets of 1 MiB: what fits is collected, a full bucket is sent before the next
# tensor, and one that is larger than a bucket shares it only if that is less than half full.
SIZES = (400, 400, 224, 16, 1200, 600, 1100)
BUCKETS = [3, 2, 1, 1]
OF_GRADIENTS = [1, 1, 1, 3, 1]  # from the last one on; what is larger than a bucket has its own


def buckets(program: Program) -> list[int]:
    """Return the number of tensors in each collective; a scalar is torch_xla's own token."""
    return [sum(bool(x.shape) for x in each.operands) for each in program.collectives]


def inputs_of(world: int) -> list[list[np.ndarray]]:
    """Return whole numbers, which float32 has exactly, for each tensor and rank."""
    wholes = [np.arange(size * 256, dtype=np.float32).reshape(-1, 2) % 251 for size in SIZES]
    return [[whole * (rank + 1) + n for rank in range(world)] for n, whole in enumerate(wholes)]


@pytest.mark.parametrize("output", ["given", "new"])
def test_all_gather(world: int, output: str, start_runtime: StartRuntime) -> None:
    """Some tensors share a collective, and every tensor keeps its place."""
    start_runtime(spmd=False)
    groups, inputs = layout("strided", world), inputs_of(world)

    def model(*tensors: torch.Tensor) -> list[torch.Tensor]:
        given = [x.new_zeros((len(x), 4)) for x in tensors] if output == "given" else None
        gathered: list[torch.Tensor] = xm.all_gather_bucketized(
            list(tensors), dim=1, groups=lists(groups), output=given, bucket_cap_mb=1
        )
        assert len(gathered) == len(tensors)
        return given or gathered

    job = trace(model, columns(*inputs))
    assert sorted(buckets(job.program)) == sorted(BUCKETS)
    for collective in job.program.collectives:
        check_groups(collective, groups, world)
    check_numbers(job.run(), *(oracle.all_gather(xs, 1, groups) for xs in inputs))


@since_2_9
def test_gradients(
    world: int, start_runtime: StartRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The optimizer's gradients, averaged; a parameter without one takes no part."""
    monkeypatch.setenv("ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB", "1")
    start_runtime(spmd=False)
    inputs = inputs_of(world)

    def model(*tensors: torch.Tensor) -> list[torch.Tensor]:
        parameters = [torch.nn.Parameter(torch.zeros_like(x)) for x in tensors]
        for parameter, x in zip(parameters, tensors, strict=True):
            parameter.grad = x * 2
        without = torch.nn.Parameter(torch.zeros(2, device=tensors[0].device))
        groups = [{"params": [without, *parameters[:3]]}, {"params": parameters[3:], "lr": 0.5}]
        xm.reduce_gradients(torch.optim.SGD(groups))
        assert without.grad is None
        return [parameter.grad for parameter in parameters]

    job = trace(model, columns(*inputs))
    assert sorted(buckets(job.program)) == sorted(OF_GRADIENTS)
    expected = [[x * np.float32(2 / world) for x in oracle.all_reduce(xs, "sum")] for xs in inputs]
    check_numbers(job.run(), *expected)


def test_refusals(start_runtime: StartRuntime) -> None:
    """Tensors and outputs must be lists of as many, whose layout can't be pinned."""
    start_runtime(spmd=False)
    x = torch.ones(4, 2).to("xla")
    with pytest.raises(RuntimeError, match="pin_layout=True is not yet supported"):
        xm.all_gather_bucketized([x], pin_layout=True)
    with pytest.raises(TypeError, match="`input_list` needs to be a list of Tensors"):
        xm.all_gather_bucketized(x)
    with pytest.raises(TypeError, match="`output_list` needs to be a list of Tensors"):
        xm.reduce_scatter_bucketized("sum", [x], 1.0, 0, 4, output=[1])
    with pytest.raises(ValueError, match="length doesn't match `input_list` length: 1 vs 2"):
        xm.reduce_scatter_bucketized("sum", [x, x], 1.0, 0, 4, output=[x])
