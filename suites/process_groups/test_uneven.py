"""Parts of different sizes, which torch.distributed documents for each of these collectives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist

from harness.model.topology import Target
from suites.process_groups.asking import ask
from suites.process_groups.jobs import Question, Rank
from suites.shared.values import ranks_of, rewritten

pytestmark = [
    pytest.mark.lanes("virtual-*"),
    pytest.mark.frameworks("torch_xla", "torch_tpu"),
    pytest.mark.topologies("4@chip"),
    pytest.mark.upstream("pytorch/xla#8660", "pytorch/xla#9068"),
]

# SIZES[i][j] rows go from rank i to rank j.
UNEVEN = ((1, 2, 0, 3), (2, 1, 1, 0), (0, 3, 2, 1), (1, 0, 2, 2))
BALANCED = ((1, 2, 0, 3), (2, 1, 3, 0), (0, 3, 1, 2), (3, 0, 2, 1))  # as many from each rank
EVEN = ((2, 2, 2, 2),) * 4
PARTS = (1, 0, 3, 2)  # rows of each rank's part


def _exchanged(inputs: list[np.ndarray], sizes: tuple[tuple[int, ...], ...]) -> list[np.ndarray]:
    parts = [
        np.split(value, np.cumsum(rows)[:-1]) for value, rows in zip(inputs, sizes, strict=True)
    ]
    return [np.concatenate([part[rank] for part in parts]) for rank in range(len(inputs))]


def _inputs(sizes: tuple[tuple[int, ...], ...]) -> list[np.ndarray]:
    return [ranks_of(4, (sum(rows), 3))[rank] for rank, rows in enumerate(sizes)]


@pytest.mark.parametrize("sizes", [EVEN, BALANCED, UNEVEN], ids=["even", "balanced", "uneven"])
def test_all_to_all_single(
    xla_target: Target, subtests: pytest.Subtests, sizes: tuple[tuple[int, ...], ...]
) -> None:
    """With split sizes that are given, be they the same or not."""
    if xla_target.framework == "torch_tpu" and sizes is BALANCED and not rewritten():
        pytest.skip("without JAX the virtual TPU has no ragged-all-to-all")

    def program(x: torch.Tensor, rank: Rank) -> torch.Tensor:
        received = [row[rank.number] for row in sizes]
        y = x.new_empty((sum(received), *x.shape[1:]))
        dist.all_to_all_single(y, x, received, list(sizes[rank.number]))
        return y

    inputs = _inputs(sizes)
    question = Question(program, inputs, _exchanged(inputs, sizes), program)
    ask(subtests, xla_target, {"float32": question})


def test_all_to_all(xla_target: Target, subtests: pytest.Subtests) -> None:
    def program(x: torch.Tensor, rank: Rank) -> torch.Tensor:
        received = [x.new_empty((row[rank.number], *x.shape[1:])) for row in UNEVEN]
        dist.all_to_all(received, list(x.split(UNEVEN[rank.number])))
        return torch.cat(received)

    inputs = _inputs(UNEVEN)
    question = Question(program, inputs, _exchanged(inputs, UNEVEN), None)
    ask(subtests, xla_target, {"float32": question})


def test_all_gather(xla_target: Target, subtests: pytest.Subtests) -> None:
    def program(x: torch.Tensor, _: Rank) -> torch.Tensor:
        parts = [x.new_empty((rows, *x.shape[1:])) for rows in PARTS]
        dist.all_gather(parts, x)
        return torch.cat(parts)

    inputs = [ranks_of(4, (rows, 3))[rank] for rank, rows in enumerate(PARTS)]
    gathered = [np.concatenate(inputs)] * xla_target.topology.total
    ask(subtests, xla_target, {"float32": Question(program, inputs, gathered, None)})


def test_reduce_scatter(xla_target: Target, subtests: pytest.Subtests) -> None:
    def program(x: torch.Tensor, rank: Rank) -> torch.Tensor:
        parts = list(x.split(PARTS))
        dist.reduce_scatter(y := torch.empty_like(parts[rank.number]), parts)
        return y

    inputs = ranks_of(xla_target.topology.total, (sum(PARTS), 3))
    total = np.sum(np.stack(inputs), 0, dtype=np.float32)
    parts = np.split(total, np.cumsum(PARTS)[:-1])
    ask(subtests, xla_target, {"float32": Question(program, inputs, parts, None)})
