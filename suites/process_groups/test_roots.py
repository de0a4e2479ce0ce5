"""Collectives with a root: every rank as the root, and what the other ranks' tensors hold then."""

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


def _broadcast(root: int) -> Program:
    def program(x: torch.Tensor, _: Rank) -> torch.Tensor:
        dist.broadcast(x, root)
        return x

    return program


def _reduce(root: int) -> Program:
    def program(x: torch.Tensor, _: Rank) -> torch.Tensor:
        dist.reduce(x, root)
        return x

    return program


def _gather(root: int) -> Program:
    def program(x: torch.Tensor, rank: Rank) -> torch.Tensor:
        parts = [torch.zeros_like(x) for _ in rank.members] if rank.number == root else None
        dist.gather(x, parts, root)
        return torch.stack(parts) if parts else x

    return program


def _scatter(root: int) -> Program:
    def program(x: torch.Tensor, rank: Rank) -> torch.Tensor:
        parts = list(x.split(1)) if rank.number == root else None
        dist.scatter(y := torch.zeros_like(x[:1]), parts, root)
        return y

    return program


def test_broadcast(xla_target: Target, subtests: pytest.Subtests) -> None:
    inputs = ranks_of(xla_target.topology.total, (4, 3))
    questions = {
        f"root-{root}": Question(
            _broadcast(root), inputs, oracle.broadcast(inputs, root), _broadcast(root)
        )
        for root in range(xla_target.topology.total)
    }
    ask(subtests, xla_target, questions)


@pytest.mark.frameworks("torch_xla")
def test_reduce(xla_target: Target, subtests: pytest.Subtests) -> None:
    """The root gets the sum; the others keep what they have, as torch_xla's own comment says.

    PyTorch leaves open what the others hold, and gloo uses their memory.
    """
    inputs = ranks_of(xla_target.topology.total, (4, 3))
    questions = {}
    for root, total in enumerate(oracle.all_reduce(inputs, "sum")):
        expected = [*inputs[:root], total, *inputs[root + 1 :]]
        questions[f"root-{root}"] = Question(_reduce(root), inputs, expected, None)
    ask(subtests, xla_target, questions)


def test_gather(xla_target: Target, subtests: pytest.Subtests) -> None:
    inputs = ranks_of(xla_target.topology.total, (4, 3))
    questions = {}
    for root in range(xla_target.topology.total):
        expected = [*inputs[:root], np.stack(inputs), *inputs[root + 1 :]]
        questions[f"root-{root}"] = Question(_gather(root), inputs, expected, _gather(root))
    ask(subtests, xla_target, questions)


def test_scatter(xla_target: Target, subtests: pytest.Subtests) -> None:
    inputs = ranks_of(xla_target.topology.total, (4, 3))
    questions = {
        f"root-{root}": Question(_scatter(root), inputs, np.split(inputs[root], 4), _scatter(root))
        for root in range(xla_target.topology.total)
    }
    ask(subtests, xla_target, questions)


def test_broadcast_overwrites(xla_target: Target, subtests: pytest.Subtests) -> None:
    """What the others held before, such as memory that was never initialised, does not count."""
    inputs = [np.full((2, 3), np.nan, np.float32) for _ in range(xla_target.topology.total)]
    inputs[1] = np.ones((2, 3), np.float32)
    expected = oracle.broadcast(inputs, 1)
    question = Question(_broadcast(1), inputs, expected, _broadcast(1))
    ask(subtests, xla_target, {"float32": question})


def test_reduce_beside_all_reduce(xla_target: Target, subtests: pytest.Subtests) -> None:
    """Two collectives in one step."""

    def program(x: torch.Tensor, rank: Rank) -> torch.Tensor:
        y = -x
        dist.all_reduce(x)
        dist.reduce(y, 1)
        return torch.cat([x, y]) if rank.number == 1 else x

    inputs = ranks_of(xla_target.topology.total, (4, 3))
    total = oracle.all_reduce(inputs, "sum")
    expected = [*total[:1], np.concatenate([total[1], -total[1]]), *total[2:]]
    ask(subtests, xla_target, {"float32": Question(program, inputs, expected, program)})
