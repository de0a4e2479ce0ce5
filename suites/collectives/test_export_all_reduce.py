"""`all_reduce` through torch.export: exports, says what the model says, and computes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from harness.oracles import collectives as oracle
from harness.session.fixtures import StartRuntime
from suites.collectives.checks import check_groups, check_operands, check_reducer, check_signature
from suites.collectives.programs import Job, export
from suites.shared.comparison import check_numbers
from suites.shared.groups import layout
from suites.shared.values import REDUCERS, REDUCTIONS, SHAPES, columns, executable, ranks_of, values

pytestmark = [pytest.mark.lanes("cpu", "virtual-*"), pytest.mark.upstream("pytorch/xla#8854")]

functional = torch.ops._c10d_functional
Spell = Callable[[str, str], Callable[[torch.Tensor], Any]]


def _in_place(_: str, reducer: str) -> Callable[[torch.Tensor], Any]:
    def model(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        dist.all_reduce(y, op=getattr(dist.ReduceOp, REDUCERS[reducer].c10d))
        return y

    return model


def _returned(_: str, reducer: str) -> Callable[[torch.Tensor], Any]:
    operation = getattr(dist.ReduceOp, REDUCERS[reducer].c10d)
    return lambda x: dist.all_reduce(x + 0, op=operation)


def _functional(group: str, reducer: str) -> Callable[[torch.Tensor], Any]:
    return lambda x: functional.wait_tensor(functional.all_reduce(x, reducer, group))


SPELLINGS: dict[str, Spell] = {
    "in_place": _in_place,
    "returned": _returned,
    "functional": _functional,
}
spelled = pytest.mark.parametrize("spelling", SPELLINGS)
worlds = pytest.mark.topologies(1, 2, 4, 8)


def _export(spelling: str, group: str, reducer: str, inputs: list[Any]) -> Job:
    return export(SPELLINGS[spelling](group, reducer), columns(inputs))


@worlds
@spelled
def test_exports(world: int, group: str, spelling: str, start_runtime: StartRuntime) -> None:
    start_runtime(spmd=False)
    job = _export(spelling, group, "sum", ranks_of(world, (3, 2)))
    check_reducer(job.program.only("all_reduce"), "add")


@worlds
@spelled
@pytest.mark.upstream("pytorch/xla#8969")
def test_signature(world: int, group: str, spelling: str, start_runtime: StartRuntime) -> None:
    start_runtime(spmd=False)
    inputs = ranks_of(world, (3, 2))
    job = _export(spelling, group, "sum", inputs)
    check_signature(job.program, inputs[:1], inputs[:1])


@worlds
@pytest.mark.upstream("pytorch/xla#8969")
def test_one_operand_per_tensor(world: int, group: str, start_runtime: StartRuntime) -> None:
    start_runtime(spmd=False)
    job = _export("functional", group, "sum", ranks_of(world, (3, 2)))
    check_operands(job.program.only("all_reduce"), 1)


@worlds
@spelled
def test_numbers(world: int, group: str, spelling: str, start_runtime: StartRuntime) -> None:
    """Right, given the value that the bundle holds for the argument that shouldn't be there."""
    start_runtime(spmd=False)
    inputs = ranks_of(world, (3, 2))
    job = _export(spelling, group, "sum", inputs)
    check_numbers(job.run(), oracle.all_reduce(inputs, "sum"))


@pytest.mark.topologies(4)
@pytest.mark.parametrize(("reducer", "dtype"), REDUCTIONS)
def test_reducer_and_dtype(
    world: int, group: str, reducer: str, dtype: str, start_runtime: StartRuntime
) -> None:
    start_runtime(spmd=False)
    inputs = ranks_of(world, (3, 5), dtype, reducer)
    job = _export("functional", group, reducer, inputs)
    collective = job.program.only("all_reduce")
    check_reducer(collective, REDUCERS[reducer].operation)
    check_groups(collective, (), world)
    if executable(reducer, dtype):
        check_numbers(job.run(), oracle.all_reduce(inputs, reducer))


@pytest.mark.topologies(4)
@pytest.mark.parametrize("reducer", REDUCERS)
def test_reduce_op(world: int, group: str, reducer: str, start_runtime: StartRuntime) -> None:
    """`dist.ReduceOp`, by its own names."""
    start_runtime(spmd=False)
    job = _export("in_place", group, reducer, ranks_of(world, (3,), "int32"))
    check_reducer(job.program.only("all_reduce"), REDUCERS[reducer].operation)


@pytest.mark.topologies(4)
@pytest.mark.upstream("pytorch/xla#7782")
@pytest.mark.parametrize("operation", ["avg", "bxor", "premul_sum"])
def test_undefined_reductions_are_refused(
    world: int, group: str, operation: str, start_runtime: StartRuntime
) -> None:
    """XLA has no such reductions (and gloo no AVG): an error that names it, not another number."""
    start_runtime(spmd=False)
    with pytest.raises(RuntimeError, match=f"Unknown AllReduce type: {operation}"):
        export(
            lambda x: functional.wait_tensor(functional.all_reduce(x, operation, group)),
            [(value,) for value in ranks_of(world, (3,), "int32")],
        )


@pytest.mark.topologies(2)
@pytest.mark.parametrize("shape", SHAPES)
def test_shape(world: int, group: str, shape: str, start_runtime: StartRuntime) -> None:
    start_runtime(spmd=False)
    inputs = ranks_of(world, SHAPES[shape])
    job = _export("functional", group, "sum", inputs)
    check_numbers(job.run(), oracle.all_reduce(inputs, "sum"))


@pytest.mark.topologies(4)
@pytest.mark.parametrize("name", ["all", "pairs", "strided", "singletons"])
@pytest.mark.usefixtures("group")
def test_subgroup(world: int, name: str, start_runtime: StartRuntime) -> None:
    """Rank 0 reduces over its own subgroup: the other ranks' values have no part in it."""
    start_runtime(spmd=False)
    groups, inputs = layout(name, world), ranks_of(world, (3,))
    (ranks,) = (ranks for ranks in groups if 0 in ranks)
    job = _export("functional", dist.new_group(list(ranks)).group_name, "max", inputs)
    got = job.program.only("all_reduce").groups or layout("all", world)
    assert ranks in got, f"groups: expected {ranks} among them, got {got}"
    check_numbers(job.run()[:1], oracle.all_reduce(inputs, "max", groups)[:1])


@pytest.mark.topologies(4)
def test_two_reductions_in_one_program(world: int, group: str, start_runtime: StartRuntime) -> None:
    start_runtime(spmd=False)

    def model(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = functional.wait_tensor(functional.all_reduce(x, "sum", group))
        return total, functional.wait_tensor(functional.all_reduce(total * x, "max", group))

    inputs = ranks_of(world, (3, 2))
    job = export(model, columns(inputs))
    totals = oracle.all_reduce(inputs, "sum")
    products = [total * value for total, value in zip(totals, inputs, strict=True)]
    assert [c.reducer for c in job.program.collectives] == ["add", "maximum"]
    check_numbers(job.run(), totals, oracle.all_reduce(products, "max"))


@pytest.mark.topologies(4)
@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "reduce_scatter"])
def test_coalesced_is_refused(
    world: int, group: str, operation: str, start_runtime: StartRuntime
) -> None:
    """The coalesced functional collectives have no XLA kernel: export must say so."""
    start_runtime(spmd=False)
    calls: dict[str, Callable[[list[torch.Tensor]], list[torch.Tensor]]] = {
        "all_reduce": lambda xs: functional.all_reduce_coalesced(xs, "sum", group),
        "all_gather": lambda xs: functional.all_gather_into_tensor_coalesced(xs, world, group),
        "reduce_scatter": lambda xs: functional.reduce_scatter_tensor_coalesced(
            xs, "sum", world, group
        ),
    }
    with pytest.raises(RuntimeError, match="ops not capturable by Pytorch/XLA"):
        export(
            lambda x: [functional.wait_tensor(y) for y in calls[operation]([x, x])],
            [(values("float32", (world,), 0),)],
        )
