"""`xm.all_reduce`: every reducer, dtype, shape, layout and scale, out of place and in place."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch_xla
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch_xla.core import xla_model as xm

from harness.oracles import collectives as oracle
from harness.session.fixtures import StartRuntime
from suites.collectives.checks import check_groups, check_reducer
from suites.collectives.programs import trace
from suites.shared.comparison import check_numbers
from suites.shared.groups import LAYOUTS, Groups, layout, lists
from suites.shared.tensors import to_numpy, to_torch
from suites.shared.values import REDUCERS, REDUCTIONS, SHAPES, columns, executable, ranks_of

pytestmark = [pytest.mark.lanes("cpu", "virtual-*"), pytest.mark.upstream("pytorch/xla#8854")]

FRACTIONS = (0.5, -1.5, 2.75)


def _scaled(values: list[np.ndarray], scale: float) -> list[np.ndarray]:
    return [np.asarray(value * np.float64(scale)).astype(value.dtype) for value in values]


@pytest.mark.topologies(2, 4, 8)
@pytest.mark.parametrize("name", LAYOUTS)
def test_groups(world: int, name: str, start_runtime: StartRuntime) -> None:
    start_runtime(spmd=False)
    groups, inputs = layout(name, world), ranks_of(world, (3, 2))
    job = trace(lambda x: xm.all_reduce("max", x, groups=lists(groups)), columns(inputs))
    check_groups(job.program.only("all_reduce"), groups, world)
    check_numbers(job.run(), oracle.all_reduce(inputs, "max", groups))


@pytest.mark.topologies(4)
@pytest.mark.parametrize(("reducer", "dtype"), REDUCTIONS)
def test_reducer_and_dtype(
    world: int, reducer: str, dtype: str, start_runtime: StartRuntime
) -> None:
    start_runtime(spmd=False)
    groups, inputs = layout("strided", world), ranks_of(world, (3, 5), dtype, reducer)
    job = trace(lambda x: xm.all_reduce(reducer, x, groups=lists(groups)), columns(inputs))
    collective = job.program.only("all_reduce")
    check_reducer(collective, REDUCERS[reducer].operation)
    check_groups(collective, groups, world)
    if executable(reducer, dtype):
        check_numbers(job.run(), oracle.all_reduce(inputs, reducer, groups))


@pytest.mark.topologies(2)
@pytest.mark.parametrize("shape", SHAPES)
def test_shape(world: int, shape: str, start_runtime: StartRuntime) -> None:
    start_runtime(spmd=False)
    inputs = ranks_of(world, SHAPES[shape])
    job = trace(lambda x: xm.all_reduce("sum", x, pin_layout=False), columns(inputs))
    check_numbers(job.run(), oracle.all_reduce(inputs, "sum"))


@pytest.mark.topologies(4)
@pytest.mark.parametrize("scale", [0.0, 0.5, -1.5, 2.0])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_scale(world: int, dtype: str, scale: float, start_runtime: StartRuntime) -> None:
    start_runtime(spmd=False)
    inputs = ranks_of(world, (3, 2), dtype)
    job = trace(lambda x: xm.all_reduce("sum", x, scale=scale), columns(inputs))
    check_numbers(job.run(), _scaled(oracle.all_reduce(inputs, "sum"), scale))


@pytest.mark.topologies(4)
@pytest.mark.parametrize("scale", [0.0, 3.0, *FRACTIONS])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_scale_of_integers(
    world: int, dtype: str, scale: float, start_runtime: StartRuntime
) -> None:
    """The scale is a real number; the reduction times the scale is then rounded towards zero."""
    start_runtime(spmd=False)
    inputs = ranks_of(world, (3, 2), dtype)
    job = trace(lambda x: xm.all_reduce("sum", x, scale=scale), columns(inputs))
    check_numbers(job.run(), _scaled(oracle.all_reduce(inputs, "sum"), scale))


@pytest.mark.topologies(2, 4)
@pytest.mark.parametrize("scale", [1.0, 0.5])
@pytest.mark.parametrize("dtypes", ["float32", "float32+float32", "float32+bfloat16"])
def test_list_in_place(world: int, dtypes: str, scale: float, start_runtime: StartRuntime) -> None:
    """A list is reduced in place, and returned: one collective per dtype."""
    start_runtime(spmd=False)
    names = dtypes.split("+")
    shapes = [(3, 2), (5,)]
    inputs = [ranks_of(world, shape, dtype) for shape, dtype in zip(shapes, names, strict=False)]

    def model(*tensors: torch.Tensor) -> list[torch.Tensor]:
        given = list(tensors)
        assert xm.all_reduce("sum", given, scale=scale) is given
        return list(tensors)

    job = trace(model, columns(*inputs))
    assert len(job.program.collectives) == len(set(names))
    check_numbers(job.run(), *(_scaled(oracle.all_reduce(x, "sum"), scale) for x in inputs))


@pytest.mark.topologies(4)
def test_list_in_place_with_groups(world: int, start_runtime: StartRuntime) -> None:
    start_runtime(spmd=False)
    groups, inputs = layout("pairs", world), ranks_of(world, (3, 2))
    job = trace(lambda x: xm.all_reduce("max", [x], groups=lists(groups)), columns(inputs))
    check_groups(job.program.only("all_reduce"), groups, world)
    check_numbers(job.run(), oracle.all_reduce(inputs, "max", groups))


@pytest.mark.topologies(4)
@pytest.mark.parametrize("reducer", ["and", "or"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bitwise_reduction_of_floats_is_refused(
    world: int, dtype: str, reducer: str, start_runtime: StartRuntime
) -> None:
    start_runtime(spmd=False)
    with pytest.raises(RuntimeError, match="Expected pred or integral type"):
        trace(lambda x: xm.all_reduce(reducer, x), columns(ranks_of(world, (3,), dtype)))


@pytest.mark.topologies(4)
def test_groups_that_leave_ranks_out_are_refused(world: int, start_runtime: StartRuntime) -> None:
    """StableHLO wants each replica in one group (spec of all_reduce, on replica_groups)."""
    start_runtime(spmd=False)
    with pytest.raises(RuntimeError, match="conversion failed"):
        trace(lambda x: xm.all_reduce("sum", x, groups=[[0, 2]]), columns(ranks_of(world, (3,))))


@pytest.mark.topologies(4)
def test_unknown_reducer_is_refused(world: int, start_runtime: StartRuntime) -> None:
    start_runtime(spmd=False)
    with pytest.raises(RuntimeError, match="Unknown AllReduce type: mean"):
        trace(lambda x: xm.all_reduce("mean", x, scale=2.0), columns(ranks_of(world, (3,))))


@pytest.mark.long
@pytest.mark.topologies(2, 4, 8)
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_any_reduction(world: int, dtype: str, start_runtime: StartRuntime) -> None:
    """Property: any shape, reducer and partition of the ranks, in any order."""
    start_runtime(spmd=False)

    # Not minimized: a release that fails at every example would spend 15 s on it.
    @settings(
        max_examples=10, derandomize=True, deadline=None, database=None, phases=[Phase.generate]
    )
    @given(
        shape=st.lists(st.integers(0, 4), max_size=3).map(tuple),
        reducer=st.sampled_from(["sum", "mul", "min", "max"]),
        groups=_partitions(world),
    )
    def holds(shape: tuple[int, ...], reducer: str, groups: Groups) -> None:
        inputs = ranks_of(world, shape, dtype, reducer)
        job = trace(lambda x: xm.all_reduce(reducer, x, groups=lists(groups)), columns(inputs))
        check_groups(job.program.only("all_reduce"), groups, world)
        check_numbers(job.run(), oracle.all_reduce(inputs, reducer, groups))

    holds()


def _partitions(world: int) -> st.SearchStrategy[Groups]:
    """Generate groups: the ranks in any order, divided anywhere."""

    def cut(drawn: tuple[list[int], set[int]]) -> Groups:
        ranks, cuts = drawn
        edges = [0, *sorted(cuts), world]
        return tuple(tuple(ranks[a:b]) for a, b in pairwise(edges))

    cuts = st.sets(st.integers(1, world - 1))
    return st.tuples(st.permutations(range(world)), cuts).map(cut)


def _on_one_device(how: str, value: np.ndarray, **options: Any) -> list[list[np.ndarray]]:
    """`xm.all_reduce` executed by torch_xla itself, at world size 1."""
    tensor = to_torch(value).to(torch_xla.device())
    reduced = xm.all_reduce("sum", [tensor] if how == "list" else tensor, **options)
    return [[to_numpy(reduced[0] if how == "list" else reduced)]]


@pytest.mark.topologies(1)
@pytest.mark.upstream("pytorch/xla#9670")
@pytest.mark.parametrize("how", ["tensor", "list"])
class TestWorldOfOne:
    """One rank's reduction is its input, times the scale."""

    VALUE = ranks_of(1, (3, 2))

    def test_is_the_identity(self, start_runtime: StartRuntime, how: str) -> None:
        start_runtime(spmd=False)
        check_numbers(_on_one_device(how, self.VALUE[0]), self.VALUE)

    def test_applies_the_scale(self, start_runtime: StartRuntime, how: str) -> None:
        start_runtime(spmd=False)
        got = _on_one_device(how, self.VALUE[0], scale=0.5)
        check_numbers(got, _scaled(self.VALUE, 0.5))

    @pytest.mark.environment(XLA_ALWAYS_ALLREDUCE="1")
    def test_applies_the_scale_if_it_must_reduce(
        self, start_runtime: StartRuntime, how: str
    ) -> None:
        start_runtime(spmd=False)
        got = _on_one_device(how, self.VALUE[0], scale=0.5)
        check_numbers(got, _scaled(self.VALUE, 0.5))
