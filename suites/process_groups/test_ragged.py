"""TorchTPU's ragged operators: parts of any size for each rank, a matrix for each group of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
import torch

from harness.model.topology import Target
from suites.process_groups.asking import ask
from suites.process_groups.jobs import Program, Question, Rank
from suites.process_groups.programs import group_of
from suites.shared.groups import Groups
from suites.shared.values import ranks_of, rewritten

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.frameworks("torch_tpu"),
    pytest.mark.topologies("4@chip"),
    pytest.mark.skipif(
        not rewritten(), reason="without JAX the virtual TPU has no ragged operators"
    ),
]
exchanges = pytest.mark.upstream("pytorch/xla#8660", "pytorch/xla#9068")
ROWS = 9  # of each operand and each result, some of which nobody sends or receives


@dataclass(frozen=True)
class Exchange:
    """``sizes[i][j]`` rows go from member i of a group to member j; parts lie as they are packed.

    Packed back to front where ``backwards``: the part for the last member comes first, and so does
    the part from it. Where ``tight``, operands and results have no rows besides, so that each
    member has others of its own size.
    """

    sizes: np.ndarray
    backwards: bool = False
    tight: bool = False

    @property
    def given(self) -> list[int]:
        """The rows of each member's operand."""
        return self._rows(1)

    @property
    def received(self) -> list[int]:
        """The rows of each member's result."""
        return self._rows(0)

    def _rows(self, axis: int) -> list[int]:
        return self.sizes.sum(axis).tolist() if self.tight else [ROWS] * len(self.sizes)

    @property
    def starts(self) -> np.ndarray:
        """The row of a member's operand at which the part for another begins: [from, to]."""
        return self._packed(self.sizes, 1)

    @property
    def places(self) -> np.ndarray:
        """The row of a member's result at which the part from another begins: [from, to]."""
        return self._packed(self.sizes, 0)

    def _packed(self, sizes: np.ndarray, axis: int) -> np.ndarray:
        if self.backwards:
            return np.flip(self._before(np.flip(sizes, axis), axis), axis)
        return self._before(sizes, axis)

    @staticmethod
    def _before(sizes: np.ndarray, axis: int) -> np.ndarray:
        return np.cumsum(sizes, axis) - sizes

    def forward(self, given: Sequence[np.ndarray], kept: float) -> list[np.ndarray]:
        """Return each member's rows after the exchange, which had ``kept`` in every row."""
        row, dtype = given[0].shape[1:], given[0].dtype
        received = [np.full((rows, *row), kept, dtype) for rows in self.received]
        for source, target, out, into in self._parts():
            received[target][into] = given[source][out]
        return received

    def backward(self, gradients: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the gradients of the operands, given those of the results."""
        row, dtype = gradients[0].shape[1:], gradients[0].dtype
        gradients_given = [np.zeros((rows, *row), dtype) for rows in self.given]
        for source, target, out, into in self._parts():
            gradients_given[source][out] = gradients[target][into]
        return gradients_given

    def _parts(self) -> list[tuple[int, int, slice, slice]]:
        return [
            (i, j, *(slice(at[i, j], at[i, j] + size) for at in (self.starts, self.places)))
            for (i, j), size in np.ndenumerate(self.sizes)
        ]

    def program(self, x: torch.Tensor, rank: Rank) -> torch.Tensor:
        """Run the exchange as a rank calls it, into rows of -1."""
        member = rank.members.index(rank.number)

        def told(rows: np.ndarray) -> torch.Tensor:
            return torch.tensor(rows.tolist(), dtype=torch.int32, device=x.device)

        received: torch.Tensor = torch.tpu.ops.ragged_all_to_all(
            x,
            x.new_full((self.received[member], *x.shape[1:]), -1),
            told(self.starts[member]),
            told(self.sizes[member]),
            told(self.places[member]),
            told(self.sizes[:, member]),
            group_of(rank).group_name,
        )
        return received


UNEVEN = np.array([[1, 2, 0, 3], [2, 1, 1, 0], [0, 3, 2, 1], [1, 0, 2, 2]])
EXCHANGES = {
    "uneven": Exchange(UNEVEN),
    "backwards": Exchange(UNEVEN, backwards=True),
    "nothing": Exchange(np.zeros((4, 4), int)),
    "one-way": Exchange(np.diag([2, 3, 4], 1)),
    "tight": Exchange(UNEVEN, tight=True),
}


def _data(rows: Sequence[int], row: tuple[int, ...], dtype: str = "float32") -> list[np.ndarray]:
    """For each rank, of so many rows."""
    ranks = ranks_of(len(rows), (ROWS, *row), dtype)
    return [values[:count] for values, count in zip(ranks, rows, strict=True)]


@exchanges
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_exchange(xla_target: Target, subtests: pytest.Subtests, exchange: str) -> None:
    """Each part arrives in its place, and what nobody sends stays as it was."""
    routes, questions = EXCHANGES[exchange], {}
    for dtype, row in product(("float32", "bfloat16", "int32"), ((), (3,))):
        inputs = _data(routes.given, row, dtype)
        expected = routes.forward(inputs, -1)
        questions[f"{dtype}{len(row) + 1}d"] = Question(routes.program, inputs, expected, None)
    ask(subtests, xla_target, questions)


@exchanges
@pytest.mark.parametrize("groups", [((0, 1), (2, 3)), ((0, 2), (1, 3))], ids=["pairs", "strided"])
def test_exchange_of_subgroups(
    xla_target: Target, subtests: pytest.Subtests, groups: Groups
) -> None:
    routes = Exchange(np.array([[1, 4], [3, 2]]))
    inputs = ranks_of(4, (ROWS, 2))
    expected = [np.empty(0)] * 4
    for group in groups:
        received = routes.forward([inputs[rank] for rank in group], -1)
        for rank, value in zip(group, received, strict=True):
            expected[rank] = value
    ask(subtests, xla_target, {"float32": Question(routes.program, inputs, expected, None)}, groups)


@exchanges
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_gradient_of_an_exchange(
    xla_target: Target, subtests: pytest.Subtests, exchange: str
) -> None:
    """The gradient of each part goes back to where it came from; rows that stayed have none."""
    routes = EXCHANGES[exchange]
    gradients = _data(routes.received, (2,))

    def program(x: torch.Tensor, rank: Rank) -> torch.Tensor:
        x.requires_grad_()
        result = routes.program(x, rank)
        result.backward(torch.from_numpy(gradients[rank.number]).to(x.device))
        assert x.grad is not None
        return x.grad

    inputs = _data(routes.given, (2,))
    question = Question(program, inputs, routes.backward(gradients), None)
    ask(subtests, xla_target, {"float32": question})


@pytest.mark.upstream("pytorch/xla#8334")
@pytest.mark.parametrize("sizes", [(3, 6), (0, 9, 0), (2, 0, 4, 3)], ids=str)
def test_grouped_matmul(
    xla_target: Target, subtests: pytest.Subtests, sizes: tuple[int, ...]
) -> None:
    """The rows of each group by a matrix of their own, and the gradients of both."""
    # Small numbers, so that no sum is rounded, in whatever order a processor adds.
    inputs = [each % 61 for each in ranks_of(4, (ROWS, 4))]
    matrices = ranks_of(2, (len(sizes), 4, 5))[1] % 61
    after = ranks_of(2, (ROWS, 5))[1] % 61
    groups = np.split(np.arange(ROWS), np.cumsum(sizes)[:-1])

    def asked(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights = torch.from_numpy(matrices).to(x.device).requires_grad_()
        counts = torch.tensor(sizes, dtype=torch.int32, device=x.device)
        return torch.tpu.ops.ragged_dot(x, weights, counts), weights

    def result(x: torch.Tensor, _: Rank) -> torch.Tensor:
        return asked(x)[0].detach()

    def of_rows(x: torch.Tensor, _: Rank) -> torch.Tensor:
        asked(x.requires_grad_())[0].backward(torch.from_numpy(after).to(x.device))
        assert x.grad is not None
        return x.grad

    def of_matrices(x: torch.Tensor, _: Rank) -> torch.Tensor:
        product, weights = asked(x)
        product.backward(torch.from_numpy(after).to(x.device))
        assert weights.grad is not None
        return weights.grad

    def of_groups(x: np.ndarray) -> dict[str, np.ndarray]:
        pairs = [*zip(groups, matrices, strict=True)]
        return {
            "result": np.concatenate([x[rows] @ matrix for rows, matrix in pairs]),
            "of_rows": np.concatenate([after[rows] @ matrix.T for rows, matrix in pairs]),
            "of_matrices": np.stack([x[rows].T @ after[rows] for rows, _ in pairs]),
        }

    programs: dict[str, Program] = {
        "result": result,
        "of_rows": of_rows,
        "of_matrices": of_matrices,
    }
    expected = [of_groups(value) for value in inputs]
    questions = {
        name: Question(program, inputs, [each[name] for each in expected], None)
        for name, program in programs.items()
    }
    ask(subtests, xla_target, questions)
