"""Collectives through torch.export, on every rank of a job that runs.

The other files about export ask torch_xla in one process with a group without peers. A framework
that finds a group's devices by its peers can only be asked here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
import torch.distributed as dist

from harness.model.topology import Target
from harness.oracles import collectives as oracle
from suites.collectives.checks import check_groups, check_reducer, check_signature
from suites.collectives.exporting import Model, export
from suites.shared.backends import BACKENDS
from suites.shared.comparison import check_numbers
from suites.shared.groups import layout
from suites.shared.values import ARITHMETIC, NUMERIC, REDUCERS, SHAPES, executable, ranks_of

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.frameworks("torch_xla", "torch_tpu"),
    pytest.mark.topologies("4@chip"),
    pytest.mark.upstream("pytorch/xla#8854"),
]

functional = torch.ops._c10d_functional


def _all_reduce(x: torch.Tensor, group: str, _: int) -> torch.Tensor:
    return functional.wait_tensor(functional.all_reduce(x, "sum", group))


def _all_gather(x: torch.Tensor, group: str, size: int) -> torch.Tensor:
    return functional.wait_tensor(functional.all_gather_into_tensor(x, size, group))


def _reduce_scatter(x: torch.Tensor, group: str, size: int) -> torch.Tensor:
    return functional.wait_tensor(functional.reduce_scatter_tensor(x, "sum", size, group))


def _all_to_all(x: torch.Tensor, group: str, size: int) -> torch.Tensor:
    parts = [len(x) // size] * size
    return functional.wait_tensor(functional.all_to_all_single(x, parts, parts, group))


Spell = Callable[[torch.Tensor, str, int], torch.Tensor]
Meaning = Callable[..., list[np.ndarray]]
COLLECTIVES: dict[str, tuple[Spell, Meaning]] = {
    "all_reduce": (_all_reduce, partial(oracle.all_reduce, reducer="sum")),
    "all_gather": (_all_gather, partial(oracle.all_gather, axis=0)),
    "reduce_scatter": (_reduce_scatter, partial(oracle.reduce_scatter, reducer="sum", axis=0)),
    "all_to_all": (_all_to_all, partial(oracle.all_to_all, split_axis=0, concat_axis=0)),
}
kinds = pytest.mark.parametrize("kind", COLLECTIVES)
REDUCTIONS = [
    *((reducer, "float32") for reducer in ARITHMETIC),
    *(("sum", dtype) for dtype in NUMERIC if dtype != "float32"),
    *((reducer, dtype) for reducer in ("and", "or") for dtype in ("bool", "int32")),
]


def _of_world(kind: str) -> Model:
    spell, _ = COLLECTIVES[kind]
    return lambda x: spell(x, dist.group.WORLD.group_name, dist.get_world_size())


def _in_place() -> Model:
    def model(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        dist.all_reduce(y)
        return y

    return model


@pytest.mark.long
@kinds
def test_numbers(xla_target: Target, kind: str) -> None:
    inputs = ranks_of(4, (8, 2))
    job = export(lambda: _of_world(kind), inputs, xla_target)
    check_groups(job.program.only(kind), (), 4)
    check_numbers(job.run(), COLLECTIVES[kind][1](inputs))


@pytest.mark.long
@kinds
@pytest.mark.upstream("pytorch/xla#8969")
def test_signature(xla_target: Target, kind: str) -> None:
    inputs = ranks_of(4, (8, 2))
    job = export(lambda: _of_world(kind), inputs, xla_target)
    check_signature(job.program, inputs[:1], COLLECTIVES[kind][1](inputs)[:1])


@pytest.mark.long
@pytest.mark.parametrize("layout_name", ["pairs", "strided"])
@kinds
def test_subgroups(xla_target: Target, kind: str, layout_name: str) -> None:
    """Ranks of every group export one program, which has all groups."""
    groups, inputs = layout(layout_name, 4), ranks_of(4, (8, 2))
    spell, meaning = COLLECTIVES[kind]
    options = BACKENDS[xla_target.framework].group_options

    def model() -> Model:
        made = {ranks: dist.new_group(list(ranks), pg_options=options) for ranks in groups}
        (own,) = (ranks for ranks in groups if dist.get_rank() in ranks)
        return lambda x: spell(x, made[own].group_name, len(own))

    job = export(model, inputs, xla_target)
    check_groups(job.program.only(kind), groups, 4)
    check_numbers(job.run(), meaning(inputs, groups=groups))


@pytest.mark.long
def test_in_place(xla_target: Target) -> None:
    """`torch.distributed`'s own function, which torch.export replaces by a functional one."""
    inputs = ranks_of(4, (8, 2))
    job = export(_in_place, inputs, xla_target)
    check_numbers(job.run(), oracle.all_reduce(inputs, "sum"))


@pytest.mark.long
@pytest.mark.parametrize(("reducer", "dtype"), REDUCTIONS)
def test_reducer_and_dtype(xla_target: Target, reducer: str, dtype: str) -> None:
    if xla_target.framework == "torch_tpu" and not executable(reducer, dtype):
        pytest.skip("torch_tpu compiles what it exports, and XLA's CPU client can't")
    inputs = ranks_of(4, (3, 5), dtype, reducer)
    c10d = REDUCERS[reducer].c10d.lower()

    def model() -> Model:
        group = dist.group.WORLD.group_name
        return lambda x: functional.wait_tensor(functional.all_reduce(x, c10d, group))

    job = export(model, inputs, xla_target)
    check_reducer(job.program.only("all_reduce"), REDUCERS[reducer].operation)
    if executable(reducer, dtype):
        check_numbers(job.run(), oracle.all_reduce(inputs, reducer))


@pytest.mark.long
@pytest.mark.parametrize("shape", SHAPES)
def test_shape(xla_target: Target, shape: str) -> None:
    inputs = ranks_of(4, SHAPES[shape])
    job = export(lambda: _of_world("all_reduce"), inputs, xla_target)
    check_numbers(job.run(), oracle.all_reduce(inputs, "sum"))
