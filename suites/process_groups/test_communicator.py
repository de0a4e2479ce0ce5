"""TorchTPU's communicator for torchcomms, whose calls name groups by objects.

The package torchcomms on PyPI is empty; the communicator that TorchTPU registers with it is not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from harness.model.topology import Target
from harness.oracles import collectives as oracle
from suites.collectives.data import Groups, layout, ranks_of
from suites.process_groups.asking import ask
from suites.process_groups.jobs import Program, Question, Rank

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.frameworks("torch_tpu"),
    pytest.mark.topologies("4@chip"),
    pytest.mark.upstream("pytorch/xla#9315"),
]
Call = Callable[[Any, torch.Tensor, int], torch.Tensor]
Meaning = Callable[[Sequence[np.ndarray], Groups], list[np.ndarray]]


def _communicator() -> Any:
    from torch_tpu._internal.distributed.torchcomm_tpu import TorchCommsTPU

    return TorchCommsTPU()


def _wait(work: Any) -> None:
    if work is not None:
        work.wait()


def _reduce(op: Any) -> Call:
    def call(comm: Any, x: torch.Tensor, _: int) -> torch.Tensor:
        _wait(comm.all_reduce(x, op))
        return x

    return call


def _gather(comm: Any, x: torch.Tensor, size: int) -> torch.Tensor:
    parts = [torch.empty_like(x) for _ in range(size)]
    _wait(comm.all_gather(parts, x))
    return torch.cat(parts)


def _gather_single(comm: Any, x: torch.Tensor, size: int) -> torch.Tensor:
    _wait(comm.all_gather_single(y := x.new_empty((size * len(x), *x.shape[1:])), x))
    return y


def _scatter(comm: Any, x: torch.Tensor, size: int) -> torch.Tensor:
    parts = [part.contiguous() for part in x.chunk(size)]
    _wait(comm.reduce_scatter(y := torch.empty_like(parts[0]), parts))
    return y


def _scatter_single(comm: Any, x: torch.Tensor, size: int) -> torch.Tensor:
    _wait(comm.reduce_scatter_single(y := x.new_empty((len(x) // size, *x.shape[1:])), x))
    return y


def _broadcast(comm: Any, x: torch.Tensor, _: int) -> torch.Tensor:
    _wait(comm.broadcast(x, root=1))
    return x


def _exchange(comm: Any, x: torch.Tensor, size: int) -> torch.Tensor:
    parts = [part.contiguous() for part in x.chunk(size)]
    _wait(comm.all_to_all(received := [torch.empty_like(part) for part in parts], parts))
    return torch.cat(received)


def _exchange_single(comm: Any, x: torch.Tensor, _: int) -> torch.Tensor:
    _wait(comm.all_to_all_single(y := torch.empty_like(x), x))
    return y


def _of_reducer(reducer: str) -> Meaning:
    return lambda xs, groups: oracle.all_reduce(xs, reducer, groups)


def _from_second(xs: Sequence[np.ndarray], groups: Groups) -> list[np.ndarray]:
    received = list(xs)
    for group in oracle.partition(groups, len(xs)):
        for rank in group:
            received[rank] = xs[group[1]]
    return received


def _gathered(xs: Sequence[np.ndarray], groups: Groups) -> list[np.ndarray]:
    return oracle.all_gather(xs, 0, groups)


def _sum_scattered(xs: Sequence[np.ndarray], groups: Groups) -> list[np.ndarray]:
    return oracle.reduce_scatter(xs, "sum", 0, groups)


def _exchanged(xs: Sequence[np.ndarray], groups: Groups) -> list[np.ndarray]:
    return oracle.all_to_all(xs, 0, 0, groups)


CALLS: dict[str, tuple[Call, Meaning]] = {
    "all_reduce": (_reduce(dist.ReduceOp.SUM), _of_reducer("sum")),
    "all_reduce_max": (_reduce(dist.ReduceOp.MAX), _of_reducer("max")),
    "all_reduce_min": (_reduce(dist.ReduceOp.MIN), _of_reducer("min")),
    "all_gather": (_gather, _gathered),
    "all_gather_single": (_gather_single, _gathered),
    "reduce_scatter": (_scatter, _sum_scattered),
    "reduce_scatter_single": (_scatter_single, _sum_scattered),
    "broadcast": (_broadcast, _from_second),
    "all_to_all": (_exchange, _exchanged),
    "all_to_all_single": (_exchange_single, _exchanged),
}


@pytest.mark.parametrize("call", CALLS)
def test_world(xla_target: Target, subtests: pytest.Subtests, call: str) -> None:
    asked, meaning = CALLS[call]

    def program(x: torch.Tensor, _: Rank) -> torch.Tensor:
        with _communicator() as comm:
            return asked(comm, x, comm.get_size())

    _ask(subtests, xla_target, program, meaning, ())


@pytest.mark.parametrize("call", ["all_reduce", "all_gather_single", "broadcast"])
def test_split(xla_target: Target, subtests: pytest.Subtests, call: str) -> None:
    """A part of the communicator is a communicator of those ranks, and of no others."""
    asked, meaning = CALLS[call]
    groups = layout("pairs", 4)

    def program(x: torch.Tensor, _: Rank) -> torch.Tensor:
        with _communicator() as whole:
            made = [whole.split(list(group)) for group in groups]
            (part,) = [each for each in made if each is not None]
            assert part.get_size() == 2
            return asked(part, x, part.get_size())

    _ask(subtests, xla_target, program, meaning, groups)


def _ask(
    subtests: pytest.Subtests, target: Target, program: Program, meaning: Meaning, groups: Groups
) -> None:
    questions = {}
    for dtype in ("float32", "int32"):
        inputs = ranks_of(4, (8, 3), dtype)
        questions[dtype] = Question(program, inputs, meaning(inputs, groups), None)
    ask(subtests, target, questions)
