"""TorchTPU's communicator for torchcomms, whose calls go around torch.distributed's functions.

The package torchcomms itself is not needed: the class that it would register is torch_tpu's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from harness.model.topology import Target
from suites.process_groups.asking import ask
from suites.process_groups.jobs import Program, Question, Rank
from suites.process_groups.programs import question
from suites.shared.groups import layout
from suites.shared.values import ranks_of

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.frameworks("torch_tpu"),
    pytest.mark.topologies("4@chip"),
    pytest.mark.upstream("pytorch/xla#9315"),
]
Calls = Callable[[Any, torch.Tensor, Rank], torch.Tensor]  # a communicator's


def _over(calls: Calls) -> Program:
    """Run the calls on the communicator of all ranks, or on that of the rank's group."""

    def program(x: torch.Tensor, rank: Rank) -> torch.Tensor:
        from torch_tpu._internal.distributed.torchcomm_tpu import create_torchcomms_tpu

        comm = create_torchcomms_tpu("tpu", device=x.device, name="all")
        if rank.group is not None:
            comm = comm.split(list(rank.members), f"group of {rank.members[0]}")
            assert (comm.rank, comm.size) == (rank.members.index(rank.number), len(rank.members))
        return calls(comm, x, rank)

    return program


def _all_reduce(comm: Any, x: torch.Tensor, _: Rank) -> torch.Tensor:
    comm.all_reduce(x)
    return x


def _all_gather(comm: Any, x: torch.Tensor, rank: Rank) -> torch.Tensor:
    parts = [torch.empty_like(x) for _ in rank.members]
    comm.all_gather(parts, x)
    return torch.cat(parts)


def _all_gather_single(comm: Any, x: torch.Tensor, rank: Rank) -> torch.Tensor:
    y = x.new_empty((len(rank.members) * len(x), *x.shape[1:]))
    comm.all_gather_single(y, x)
    return y


def _reduce_scatter(comm: Any, x: torch.Tensor, rank: Rank) -> torch.Tensor:
    parts = [part.contiguous() for part in x.chunk(len(rank.members))]
    y = torch.empty_like(parts[0])
    comm.reduce_scatter(y, parts)
    return y


def _reduce_scatter_single(comm: Any, x: torch.Tensor, rank: Rank) -> torch.Tensor:
    y = x.new_empty((len(x) // len(rank.members), *x.shape[1:]))
    comm.reduce_scatter_single(y, x)
    return y


def _all_to_all(comm: Any, x: torch.Tensor, rank: Rank) -> torch.Tensor:
    parts = [part.contiguous() for part in x.chunk(len(rank.members))]
    received = [torch.empty_like(part) for part in parts]
    comm.all_to_all(received, parts)
    return torch.cat(received)


def _all_to_all_single(comm: Any, x: torch.Tensor, _: Rank) -> torch.Tensor:
    comm.all_to_all_single(y := torch.empty_like(x), x)
    return y


def _all_to_all_v_single(comm: Any, x: torch.Tensor, rank: Rank) -> torch.Tensor:
    sizes = [len(x) // len(rank.members)] * len(rank.members)
    comm.all_to_all_v_single(y := torch.empty_like(x), x, sizes, sizes)
    return y


def _broadcast(comm: Any, x: torch.Tensor, _: Rank) -> torch.Tensor:
    comm.broadcast(x, root=1)  # counted among the communicator's
    return x


# The communicator's method, and the collective of torch.distributed that means the same.
METHODS: dict[str, tuple[Calls, str]] = {
    "all_reduce": (_all_reduce, "all_reduce"),
    "all_gather": (_all_gather, "all_gather"),
    "all_gather_single": (_all_gather_single, "all_gather_into_tensor"),
    "reduce_scatter": (_reduce_scatter, "reduce_scatter"),
    "reduce_scatter_single": (_reduce_scatter_single, "reduce_scatter_tensor"),
    "all_to_all": (_all_to_all, "all_to_all"),
    "all_to_all_single": (_all_to_all_single, "all_to_all_single"),
    "all_to_all_v_single": (_all_to_all_v_single, "all_to_all_single"),
    "broadcast": (_broadcast, "broadcast"),
}


@pytest.mark.parametrize("method", METHODS)
def test_all_ranks(xla_target: Target, subtests: pytest.Subtests, method: str) -> None:
    calls, collective = METHODS[method]
    world = xla_target.topology.total
    questions = {
        dtype: replace(
            question(collective, ranks_of(world, (8, 3), dtype)),
            program=_over(calls),
        )
        for dtype in ("float32", "int32")
    }
    ask(subtests, xla_target, questions)


def test_split(xla_target: Target, subtests: pytest.Subtests) -> None:
    """A communicator of two ranks, split from that of all."""
    world = xla_target.topology.total
    of = layout("pairs", world)
    of_pairs = question("all_reduce", ranks_of(world, (8, 3)), of)
    ask(subtests, xla_target, {"float32": replace(of_pairs, program=_over(_all_reduce))}, of)


def test_send(xla_target: Target, subtests: pytest.Subtests) -> None:
    """Rank 0 sends to rank 1; the others do nothing."""

    def sends(comm: Any, x: torch.Tensor, rank: Rank) -> torch.Tensor:
        if rank.number == 0:
            comm.send(x, 1)
        elif rank.number == 1:
            comm.recv(x, 0)
        return x

    def sends_over_gloo(x: torch.Tensor, rank: Rank) -> torch.Tensor:
        if rank.number == 0:
            dist.send(x, 1)
        elif rank.number == 1:
            dist.recv(x, 0)
        return x

    inputs = ranks_of(xla_target.topology.total, (4, 3))
    expected = [inputs[0], inputs[0], *inputs[2:]]
    questions = {"float32": Question(_over(sends), inputs, expected, sends_over_gloo)}
    ask(subtests, xla_target, questions)
