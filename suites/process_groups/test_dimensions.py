"""Collectives along another dimension than the first."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed._functional_collectives as functional

from harness.model.topology import Target
from harness.oracles import collectives as oracle
from suites.process_groups.asking import ask
from suites.process_groups.jobs import Program, Question, Rank
from suites.process_groups.programs import group_of
from suites.shared.groups import Groups, layout
from suites.shared.values import REDUCERS, ranks_of

pytestmark = [
    pytest.mark.lanes("virtual-*"),
    pytest.mark.frameworks("torch_xla", "torch_tpu"),
    pytest.mark.topologies("4@chip"),
    pytest.mark.upstream("pytorch/xla#9315"),
]

Along = Callable[[int], Program]
SHAPE = (4, 8, 12)
DIMENSIONS = (0, 1, 2, -1, -2)
layouts = pytest.mark.parametrize("groups", ["world", "pairs"])


def _gather(dim: int) -> Program:
    def program(x: torch.Tensor, rank: Rank) -> torch.Tensor:
        return functional.wait_tensor(functional.all_gather_tensor(x, dim, group_of(rank)))

    return program


def _scatter(dim: int) -> Program:
    def program(x: torch.Tensor, rank: Rank) -> torch.Tensor:
        scattered = functional.reduce_scatter_tensor(x, "sum", dim, group_of(rank))
        return functional.wait_tensor(scattered)

    return program


def _own_gather(dim: int) -> Program:
    def program(x: torch.Tensor, rank: Rank) -> torch.Tensor:
        gathered: torch.Tensor = torch.tpu.ops.all_gather_dim(x, dim, rank.group)
        return gathered

    return program


def _own_scatter(dim: int, op: str = "sum") -> Program:
    def program(x: torch.Tensor, rank: Rank) -> torch.Tensor:
        scattered: torch.Tensor = torch.tpu.ops.reduce_scatter_dim(x, dim, rank.group, op)
        return scattered

    return program


def _gathered(program: Along, dims: tuple[int, ...], groups: Groups) -> dict[str, Question]:
    inputs = ranks_of(4, SHAPE)
    return {
        str(dim): Question(program(dim), inputs, oracle.all_gather(inputs, dim, groups), None)
        for dim in dims
    }


def _scattered(program: Along, dims: tuple[int, ...], groups: Groups) -> dict[str, Question]:
    inputs = ranks_of(4, SHAPE)
    return {
        str(dim): Question(
            program(dim), inputs, oracle.reduce_scatter(inputs, "sum", dim, groups), None
        )
        for dim in dims
    }


def _groups(name: str) -> Groups:
    return () if name == "world" else layout(name, 4)


@layouts
def test_all_gather(xla_target: Target, subtests: pytest.Subtests, groups: str) -> None:
    """PyTorch's functional one, which counts dimensions from the first."""
    of = _groups(groups)
    ask(subtests, xla_target, _gathered(_gather, DIMENSIONS[:3], of), of)


@layouts
def test_reduce_scatter(xla_target: Target, subtests: pytest.Subtests, groups: str) -> None:
    of = _groups(groups)
    ask(subtests, xla_target, _scattered(_scatter, DIMENSIONS[:3], of), of)


@pytest.mark.frameworks("torch_tpu")
@layouts
def test_own_all_gather(xla_target: Target, subtests: pytest.Subtests, groups: str) -> None:
    """TorchTPU's own, which also counts dimensions from the last."""
    of = _groups(groups)
    ask(subtests, xla_target, _gathered(_own_gather, DIMENSIONS, of), of)


@pytest.mark.frameworks("torch_tpu")
@layouts
def test_own_reduce_scatter(xla_target: Target, subtests: pytest.Subtests, groups: str) -> None:
    of = _groups(groups)
    ask(subtests, xla_target, _scattered(_own_scatter, DIMENSIONS, of), of)


@pytest.mark.frameworks("torch_tpu")
def test_own_reductions(xla_target: Target, subtests: pytest.Subtests) -> None:
    """Every arithmetic reduction, along the last dimension."""
    questions = {}
    for reducer in ("sum", "mul", "min", "max"):
        inputs = ranks_of(4, SHAPE, "float32", reducer)
        program = _own_scatter(-1, REDUCERS[reducer].c10d.lower())
        expected = oracle.reduce_scatter(inputs, reducer, -1)
        questions[reducer] = Question(program, inputs, expected, None)
    ask(subtests, xla_target, questions)
