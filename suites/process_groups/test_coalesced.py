"""Several tensors in one collective."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist

from harness.model.topology import Target
from harness.oracles import collectives as oracle
from suites.process_groups.asking import ask
from suites.process_groups.jobs import Program, Question, Rank
from suites.shared.values import ranks_of

pytestmark = [
    pytest.mark.lanes("virtual-*"),
    pytest.mark.frameworks("torch_xla", "torch_tpu"),
    pytest.mark.topologies("4@chip"),
    pytest.mark.upstream("pytorch/xla#9315"),
]


def _all_reduce(x: torch.Tensor, _: Rank) -> torch.Tensor:
    first, second = x.clone(), -x
    with dist._coalescing_manager():
        dist.all_reduce(first)
        dist.all_reduce(second)
    return torch.cat([first, second])


def _all_reduce_of_list(x: torch.Tensor, _: Rank) -> torch.Tensor:
    tensors = [x.clone(), -x]
    dist.all_reduce_coalesced(tensors)
    return torch.cat(tensors)


def _all_gather_of_list(x: torch.Tensor, rank: Rank) -> torch.Tensor:
    """Each of the lists of results is one rank's, as PyTorch's own example shows."""
    parts = [[torch.empty_like(x), torch.empty_like(x)] for _ in rank.members]
    dist.all_gather_coalesced(parts, [x, -x])
    return torch.cat([first for first, _ in parts] + [second for _, second in parts])


COALESCED: dict[str, Program] = {
    "all_reduce": _all_reduce,
    "all_reduce_of_list": _all_reduce_of_list,
    "all_gather_of_list": _all_gather_of_list,
}


def _of_one(name: str, inputs: list[np.ndarray]) -> list[np.ndarray]:
    if name.startswith("all_reduce"):
        return oracle.all_reduce(inputs, "sum")
    return oracle.all_gather(inputs, 0)


@pytest.mark.parametrize("name", COALESCED)
def test_two_tensors(xla_target: Target, subtests: pytest.Subtests, name: str) -> None:
    program = COALESCED[name]
    inputs = ranks_of(xla_target.topology.total, (4, 3))
    both = [_of_one(name, inputs), _of_one(name, [-value for value in inputs])]
    expected = [np.concatenate(pair) for pair in zip(*both, strict=True)]
    question = Question(program, inputs, expected, program)
    ask(subtests, xla_target, {"float32": question})


@pytest.mark.frameworks("torch_xla")
def test_as_many_tensors_as_ranks(xla_target: Target, subtests: pytest.Subtests) -> None:
    """Of a table that is its own transpose, which leaves open whose the lists are."""

    def program(x: torch.Tensor, rank: Rank) -> torch.Tensor:
        parts = [[torch.empty_like(x) for _ in rank.members] for _ in rank.members]
        dist.all_gather_coalesced(parts, [x * (number + 1) for number in rank.members])
        return torch.stack([part for row in parts for part in row])

    world = xla_target.topology.total
    inputs = [ranks_of(1, (4, 3))[0] * (number + 1) for number in range(world)]
    numbers = np.arange(1, world + 1, dtype=np.float32)
    table = np.outer(numbers, numbers).reshape(-1, 1, 1) * inputs[0]
    question = Question(program, inputs, [table] * world, program)
    ask(subtests, xla_target, {"float32": question})
