"""A sample of the collectives, traced by torch_xla, against PyTorch's own over gloo."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch_xla.core import xla_model as xm

from harness.model.topology import Topology
from harness.oracles.gloo import run_ranks
from harness.session.fixtures import StartRuntime
from suites.collectives.programs import trace
from suites.shared.comparison import check_numbers
from suites.shared.tensors import to_numpy, to_torch
from suites.shared.values import REDUCERS, columns, executable, ranks_of

pytestmark = [pytest.mark.lanes("cpu", "virtual-*"), pytest.mark.upstream("pytorch/xla#8854")]

Collective = Callable[[torch.Tensor], torch.Tensor]


def _gloo(collective: Collective, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """Run the collective in a process per rank. It forks: call it before the runtime starts."""
    return run_ranks(lambda rank: to_numpy(collective(to_torch(inputs[rank]))), len(inputs))


def _reduce(reducer: str) -> Collective:
    def collective(x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(y := x.clone(), op=getattr(dist.ReduceOp, REDUCERS[reducer].c10d))
        return y

    return collective


def _gather(x: torch.Tensor) -> torch.Tensor:
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x)
    return torch.cat(parts)


def _exchange(x: torch.Tensor) -> torch.Tensor:
    dist.all_to_all_single(y := torch.empty_like(x), x)
    return y


def _scatter(x: torch.Tensor) -> torch.Tensor:
    world = dist.get_world_size()
    dist.reduce_scatter_tensor(y := x.new_empty((len(x) // world, *x.shape[1:])), x)
    return y


def _broadcast(x: torch.Tensor) -> torch.Tensor:
    dist.broadcast(y := x.clone(), 1)
    return y


def _broadcast_xm(x: torch.Tensor) -> torch.Tensor:
    xm.collective_broadcast([x], 1)
    return x


MOVES: dict[str, tuple[Collective, Collective]] = {
    "all_gather": (_gather, lambda x: xm.all_gather(x, pin_layout=False)),
    "all_to_all": (_exchange, lambda x: xm.all_to_all(x, 0, 0, len(x), pin_layout=False)),
    "reduce_scatter": (_scatter, lambda x: xm.reduce_scatter("sum", x, 1.0, 0, len(x))),
    "broadcast": (_broadcast, _broadcast_xm),
}
REDUCED = [
    (reducer, dtype)
    for reducer in REDUCERS
    for dtype in ("float32", "int64", "uint8")
    if executable(reducer, dtype)
]


@pytest.mark.topologies(4)
@pytest.mark.parametrize(("reducer", "dtype"), REDUCED)
def test_all_reduce(
    start_runtime: StartRuntime, topology: Topology, reducer: str, dtype: str
) -> None:
    inputs = ranks_of(topology.total, (3, 2), dtype, reducer)
    expected = _gloo(_reduce(reducer), inputs)
    start_runtime(spmd=False)
    job = trace(lambda x: xm.all_reduce(reducer, x), columns(inputs))
    check_numbers(job.run(), expected)


@pytest.mark.topologies(2, 4)
@pytest.mark.parametrize("move", MOVES)
def test_move(start_runtime: StartRuntime, topology: Topology, move: str) -> None:
    over_gloo, over_xla = MOVES[move]
    inputs = ranks_of(topology.total, (topology.total, 2))
    expected = _gloo(over_gloo, inputs)
    start_runtime(spmd=False)
    check_numbers(trace(over_xla, columns(inputs)).run(), expected)
