"""Collectives of a multi-slice job: groups inside a slice, across slices, and of all chips.

A CPU has no slices, so these cases run on lane virtual-tpu only. There torch_xla can also execute
them itself, a thread for each replica, which it can't on its own CPU client (pytorch/xla#9089).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch_xla
from torch_xla import runtime as xr
from torch_xla._internal import pjrt
from torch_xla.core import xla_model as xm

from harness.model.topology import Topology
from harness.oracles import collectives as oracle
from harness.session.fixtures import StartRuntime
from suites.collectives.checks import check_groups
from suites.collectives.programs import trace
from suites.shared.comparison import check_numbers
from suites.shared.groups import Groups, lists, slice_groups
from suites.shared.tensors import to_numpy, to_torch
from suites.shared.values import columns, ranks_of

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("2x2", "2x4", "4x2"),
    pytest.mark.upstream("pytorch/xla#3412"),
]

Model = Callable[[torch.Tensor, Groups], torch.Tensor]

# Layouts are not pinned: a pinned all_gather is another program on each rank, and XLA's CPU
# runtime lets only replicas of one program meet.
MODELS: dict[str, Model] = {
    "all_reduce": lambda x, groups: xm.all_reduce("sum", x, groups=lists(groups)),
    "all_gather": lambda x, groups: xm.all_gather(x, groups=lists(groups), pin_layout=False),
    "reduce_scatter": lambda x, groups: xm.reduce_scatter(
        "sum", x, 1.0, 0, len(groups[0]), groups=lists(groups), pin_layout=False
    ),
    "all_to_all": lambda x, groups: xm.all_to_all(
        x, 0, 0, len(groups[0]), groups=lists(groups), pin_layout=False
    ),
}
ORACLES: dict[str, Callable[[list[np.ndarray], Groups], list[np.ndarray]]] = {
    "all_reduce": lambda xs, groups: oracle.all_reduce(xs, "sum", groups),
    "all_gather": lambda xs, groups: oracle.all_gather(xs, 0, groups),
    "reduce_scatter": lambda xs, groups: oracle.reduce_scatter(xs, "sum", 0, groups),
    "all_to_all": lambda xs, groups: oracle.all_to_all(xs, 0, 0, groups),
}
named = pytest.mark.parametrize("name", ["within", "across"])


def _execute(
    model: Callable[[torch.Tensor], torch.Tensor], inputs: list[np.ndarray]
) -> list[list[np.ndarray]]:
    """`results[rank][output]`, from torch_xla itself: upstream's thread per device, all at once."""

    def replica() -> list[np.ndarray]:
        value = inputs[xr.global_ordinal()]
        return [to_numpy(model(to_torch(value).to(torch_xla.device())))]

    by_rank = pjrt._run_thread_per_device(0, 1, replica, pjrt.initialize_multiprocess)
    return [results for _, results in sorted(by_rank.items())]


@named
@pytest.mark.parametrize("kind", MODELS)
def test_groups(
    topology: Topology, world: int, kind: str, name: str, start_runtime: StartRuntime
) -> None:
    """The program says the groups, and computes them."""
    start_runtime(spmd=False)
    groups, inputs = slice_groups(name, topology), ranks_of(world, (world, 2))
    job = trace(lambda x: MODELS[kind](x, groups), columns(inputs))
    check_groups(job.program.only(kind), groups, world)
    check_numbers(job.run(), ORACLES[kind](inputs, groups))


@named
@pytest.mark.parametrize("kind", MODELS)
def test_executed(
    topology: Topology, world: int, kind: str, name: str, start_runtime: StartRuntime
) -> None:
    start_runtime(spmd=False)
    groups, inputs = slice_groups(name, topology), ranks_of(world, (world, 2))
    results = _execute(lambda x: MODELS[kind](x, groups), inputs)
    check_numbers(results, ORACLES[kind](inputs, groups))


def _by_stages(x: torch.Tensor, topology: Topology) -> torch.Tensor:
    """all_reduce as a multi-slice job does it: only one chip's part crosses between slices."""
    within, across = slice_groups("within", topology), slice_groups("across", topology)
    part = MODELS["reduce_scatter"](x, within)
    return MODELS["all_gather"](MODELS["all_reduce"](part, across), within)


@pytest.mark.parametrize("how", ["traced", "executed"])
def test_all_reduce_by_stages(
    topology: Topology, world: int, how: str, start_runtime: StartRuntime
) -> None:
    start_runtime(spmd=False)
    inputs = ranks_of(world, (world, 2))
    if how == "traced":
        results = trace(lambda x: _by_stages(x, topology), columns(inputs)).run()
    else:
        results = _execute(lambda x: _by_stages(x, topology), inputs)
    check_numbers(results, oracle.all_reduce(inputs, "sum"))


@pytest.mark.parametrize("how", ["traced", "executed"])
def test_permute_to_the_next_slice(
    topology: Topology, world: int, how: str, start_runtime: StartRuntime
) -> None:
    """A pipeline with a stage in each slice: every chip sends to its place in the next slice."""
    start_runtime(spmd=False)
    pairs = [[rank, (rank + topology.devices) % world] for rank in range(world)]
    inputs = ranks_of(world, (3, 2))
    if how == "traced":
        results = trace(lambda x: xm.collective_permute(x, pairs), columns(inputs)).run()
    else:
        results = _execute(lambda x: xm.collective_permute(x, pairs), inputs)
    check_numbers(results, oracle.collective_permute(inputs, pairs))
