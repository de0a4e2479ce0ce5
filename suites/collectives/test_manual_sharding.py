"""Collectives in a manually sharded region under SPMD, which torch_xla executes by itself."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch_xla
from torch_xla.distributed import spmd as xs

from harness.model.topology import Topology
from harness.oracles import collectives as oracle
from harness.session.fixtures import StartRuntime
from suites.shared.comparison import check_numbers
from suites.shared.groups import EVEN_LAYOUTS, layout, lists, slice_groups
from suites.shared.tensors import to_numpy, to_torch
from suites.shared.values import ARITHMETIC, ranks_of

pytestmark = [pytest.mark.lanes("cpu", "virtual-*"), pytest.mark.upstream("pytorch/xla#9089")]

_ROWS = ("ranks", None)


def _run(
    collective: Callable[[torch.Tensor], torch.Tensor], inputs: list[np.ndarray], rows: int
) -> list[list[np.ndarray]]:
    """Run `collective` on each device's part; `rows` is the number of result rows on a device."""
    world = len(inputs)
    mesh = xs.Mesh(np.arange(world), (world,), ("ranks",))
    whole = to_torch(np.concatenate(inputs)).to(torch_xla.device())
    part = xs.enable_manual_sharding(whole, _ROWS, mesh=mesh).global_tensor
    shape = torch.Size([rows * world, *whole.shape[1:]])
    result = xs.disable_manual_sharding(collective(part), _ROWS, shape, mesh=mesh)
    return [[part] for part in np.split(to_numpy(result.global_tensor), world)]


@pytest.mark.topologies(2, 4, 8)
@pytest.mark.parametrize("name", [name for name in EVEN_LAYOUTS if name != "default"])
def test_all_reduce_groups(topology: Topology, start_runtime: StartRuntime, name: str) -> None:
    start_runtime(spmd=True)
    groups, inputs = layout(name, topology.total), ranks_of(topology.total, (3, 2))
    results = _run(
        lambda x: torch_xla._XLAC._xla_spmd_all_reduce("max", x, 1.0, lists(groups)), inputs, 3
    )
    check_numbers(results, oracle.all_reduce(inputs, "max", groups))


@pytest.mark.lanes("virtual-tpu")
@pytest.mark.topologies("2x2", "2x4", "4x2")
@pytest.mark.parametrize("name", ["within", "across"])
def test_all_reduce_of_slices(topology: Topology, start_runtime: StartRuntime, name: str) -> None:
    """A group's numbers are device numbers, and those of a slice follow one another."""
    start_runtime(spmd=True)
    groups, inputs = slice_groups(name, topology), ranks_of(topology.total, (3, 2))
    results = _run(
        lambda x: torch_xla._XLAC._xla_spmd_all_reduce("sum", x, 1.0, lists(groups)), inputs, 3
    )
    check_numbers(results, oracle.all_reduce(inputs, "sum", groups))


@pytest.mark.topologies(4)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
@pytest.mark.parametrize("reducer", ARITHMETIC)
def test_all_reduce_reducer_and_dtype(
    topology: Topology, start_runtime: StartRuntime, reducer: str, dtype: str
) -> None:
    start_runtime(spmd=True)
    groups = layout("all", topology.total)
    inputs = ranks_of(topology.total, (3, 2), dtype, reducer)
    results = _run(
        lambda x: torch_xla._XLAC._xla_spmd_all_reduce(reducer, x, 1.0, lists(groups)), inputs, 3
    )
    check_numbers(results, oracle.all_reduce(inputs, reducer))


@pytest.mark.topologies(2, 8)
@pytest.mark.parametrize("scale", [1.0, 0.5])
@pytest.mark.parametrize("name", ["all", "pairs", "strided"])
def test_reduce_scatter(
    topology: Topology, start_runtime: StartRuntime, name: str, scale: float
) -> None:
    start_runtime(spmd=True)
    world = topology.total
    groups, inputs = layout(name, world), ranks_of(world, (world, 2))
    shards = len(groups[0])
    results = _run(
        lambda x: torch_xla._XLAC._xla_spmd_reduce_scatter(
            "sum", x, scale, 0, shards, lists(groups)
        ),
        inputs,
        world // shards,
    )
    expected = oracle.reduce_scatter(inputs, "sum", 0, groups)
    check_numbers(results, [value * np.float32(scale) for value in expected])
