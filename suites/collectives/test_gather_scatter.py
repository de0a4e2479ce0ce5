"""`xm.all_gather` and `xm.reduce_scatter`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch_xla.core import xla_model as xm

from harness.oracles import collectives as oracle
from harness.session.fixtures import StartRuntime
from suites.collectives.checks import check_groups, check_reducer
from suites.collectives.programs import trace, trace_each
from suites.shared.comparison import check_numbers
from suites.shared.groups import EVEN_LAYOUTS, layout, lists
from suites.shared.values import DTYPES, REDUCERS, REDUCTIONS, columns, executable, ranks_of

pytestmark = [pytest.mark.lanes("cpu", "virtual-*"), pytest.mark.upstream("pytorch/xla#3412")]

functional = torch.ops._c10d_functional
grouped = pytest.mark.parametrize("name", EVEN_LAYOUTS)


@pytest.mark.topologies(2, 4, 8)
@grouped
def test_all_gather_groups(world: int, name: str, start_runtime: StartRuntime) -> None:
    start_runtime(spmd=False)
    groups, inputs = layout(name, world), ranks_of(world, (3, 2))
    job = trace(lambda x: xm.all_gather(x, groups=lists(groups), pin_layout=False), columns(inputs))
    check_groups(job.program.only("all_gather"), groups, world)
    check_numbers(job.run(), oracle.all_gather(inputs, 0, groups))


@pytest.mark.topologies(2)
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_gather_dtype(world: int, dtype: str, start_runtime: StartRuntime) -> None:
    start_runtime(spmd=False)
    inputs = ranks_of(world, (3, 2), dtype)
    job = trace(lambda x: xm.all_gather(x, pin_layout=False), columns(inputs))
    check_numbers(job.run(), oracle.all_gather(inputs, 0))


@pytest.mark.topologies(4)
@pytest.mark.parametrize("dim", [0, 1, 2, -1, -3])
def test_all_gather_dimension(world: int, dim: int, start_runtime: StartRuntime) -> None:
    start_runtime(spmd=False)
    inputs = ranks_of(world, (2, 1, 3))
    job = trace(lambda x: xm.all_gather(x, dim, pin_layout=False), columns(inputs))
    assert job.program.only("all_gather").dimensions == (dim % 3,)
    check_numbers(job.run(), oracle.all_gather(inputs, dim))


@pytest.mark.topologies(4)
@pytest.mark.parametrize("how", ["output", "list", "list_output"])
def test_all_gather_variants(world: int, how: str, start_runtime: StartRuntime) -> None:
    """Into a given tensor, and of several tensors by one collective."""
    start_runtime(spmd=False)
    inputs = [ranks_of(world, (3, 2)), ranks_of(world, (5,))]

    def model(*tensors: torch.Tensor) -> list[torch.Tensor]:
        out = [x.new_zeros((len(x) * world, *x.shape[1:])) for x in tensors]
        if how == "output":
            return [
                xm.all_gather(x, output=y, pin_layout=False)
                for x, y in zip(tensors, out, strict=True)
            ]
        given = out if how == "list_output" else None
        gathered = xm.all_gather(list(tensors), output=given, pin_layout=False)
        return out if how == "list_output" else gathered

    job = trace(model, columns(*inputs))
    check_numbers(job.run(), *(oracle.all_gather(x, 0) for x in inputs))


@pytest.mark.topologies(2, 4, 8)
@pytest.mark.parametrize("name", ["default", "pairs", "strided"])
def test_pinned_all_gather_reduces_padded_inputs(
    world: int, name: str, start_runtime: StartRuntime, subtests: pytest.Subtests
) -> None:
    """With its layout pinned, all_gather is a sum of inputs padded to each rank's own place."""
    start_runtime(spmd=False)
    groups = layout(name, world)
    jobs = trace_each(
        lambda x: xm.all_gather(x, groups=lists(groups)), columns(ranks_of(world, (3, 2)))
    )
    for rank, job in enumerate(jobs):
        with subtests.test(rank=rank):
            collective = job.program.only("all_reduce")
            check_reducer(collective, "add")
            check_groups(collective, groups, world)


@pytest.mark.topologies(2, 4, 8)
def test_pinned_all_gather_numbers(world: int, start_runtime: StartRuntime) -> None:
    """Each rank's own program, run by one replica, is that rank's contribution to the sum."""
    start_runtime(spmd=False)
    inputs = ranks_of(world, (3, 2))
    jobs = trace_each(xm.all_gather, columns(inputs))
    contributions = [job.run()[0][0] for job in jobs]
    check_numbers([[np.sum(contributions, axis=0)]], oracle.all_gather(inputs, 0))


@pytest.mark.topologies(4)
def test_uneven_groups_are_refused(world: int, start_runtime: StartRuntime) -> None:
    start_runtime(spmd=False)
    with pytest.raises(AssertionError, match="must have the same number of replicas"):
        trace(
            lambda x: xm.all_gather(x, groups=lists(layout("uneven", world)), pin_layout=False),
            columns(ranks_of(world, (3,))),
        )


@pytest.mark.topologies(2, 4, 8)
@grouped
def test_reduce_scatter_groups(world: int, name: str, start_runtime: StartRuntime) -> None:
    start_runtime(spmd=False)
    groups, inputs = layout(name, world), ranks_of(world, (2 * world, 3))
    shards = len(groups[0]) if groups else world
    job = trace(
        lambda x: xm.reduce_scatter("sum", x, 1.0, 0, shards, groups=lists(groups)),
        columns(inputs),
    )
    collective = job.program.only("reduce_scatter")
    check_reducer(collective, "add")
    check_groups(collective, groups, world)
    check_numbers(job.run(), oracle.reduce_scatter(inputs, "sum", 0, groups))


@pytest.mark.topologies(2)
@pytest.mark.parametrize(("reducer", "dtype"), REDUCTIONS[::3])
def test_reduce_scatter_reducer_and_dtype(
    world: int, reducer: str, dtype: str, start_runtime: StartRuntime
) -> None:
    start_runtime(spmd=False)
    inputs = ranks_of(world, (4, 3), dtype, reducer)
    job = trace(lambda x: xm.reduce_scatter(reducer, x, 1.0, 0, world), columns(inputs))
    check_reducer(job.program.only("reduce_scatter"), REDUCERS[reducer].operation)
    if executable(reducer, dtype):
        check_numbers(job.run(), oracle.reduce_scatter(inputs, reducer, 0))


@pytest.mark.topologies(4)
@pytest.mark.parametrize("scale", [0.5, -2.0])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_reduce_scatter_dimension_and_scale(
    world: int, dim: int, scale: float, start_runtime: StartRuntime
) -> None:
    start_runtime(spmd=False)
    inputs = ranks_of(world, (4, 8))
    job = trace(lambda x: xm.reduce_scatter("sum", x, scale, dim % 2, world), columns(inputs))
    expected = oracle.reduce_scatter(inputs, "sum", dim)
    check_numbers(job.run(), [value * np.float32(scale) for value in expected])


@pytest.mark.topologies(4)
@pytest.mark.upstream("pytorch/xla#9314")
@pytest.mark.parametrize("pin", ["pinned", "unpinned"])
@pytest.mark.parametrize("how", ["output", "list", "list_output"])
def test_reduce_scatter_variants(
    world: int, how: str, pin: str, start_runtime: StartRuntime
) -> None:
    """Into a given tensor, and of several tensors by one collective."""
    start_runtime(spmd=False)
    inputs = [ranks_of(world, (4, 2)), ranks_of(world, (8,))]

    def scatter(x: Any, output: Any = None) -> Any:
        return xm.reduce_scatter("sum", x, 1.0, 0, world, output=output, pin_layout=pin == "pinned")

    def model(*tensors: torch.Tensor) -> list[torch.Tensor]:
        out = [x.new_zeros((len(x) // world, *x.shape[1:])) for x in tensors]
        if how == "output":
            return [scatter(x, y) for x, y in zip(tensors, out, strict=True)]
        scattered = scatter(list(tensors), out if how == "list_output" else None)
        return out if how == "list_output" else scattered

    job = trace(model, columns(*inputs))
    check_numbers(job.run(), *(oracle.reduce_scatter(x, "sum", 0) for x in inputs))
