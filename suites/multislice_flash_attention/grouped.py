"""Grouped matmul problems: rows of one matrix that are multiplied with a matrix for each group."""

from collections.abc import Sequence

import torch

ROWS, WIDTH, OUT = 128, 128, 256
TILING = (64, 128, 128)
GROUPS = {"even": (64, 64), "uneven": (100, 20, 8), "an-empty-one": (28, 0, 100)}


def matrices(groups: Sequence[int], dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    """Host tensors [rows, width], [groups, width, out], int32 [groups]."""
    random = torch.Generator().manual_seed(9)
    lhs = torch.randn(ROWS, WIDTH, generator=random).to(dtype)
    rhs = torch.randn(len(groups), WIDTH, OUT, generator=random).to(dtype)
    return lhs, rhs, torch.tensor(groups, dtype=torch.int32)


def expected(lhs: torch.Tensor, rhs: torch.Tensor, groups: Sequence[int]) -> torch.Tensor:
    """[rows, out]: each group's rows by its matrix; differentiable, in the inputs' dtype."""
    parts = lhs.split(list(groups))
    return torch.cat([part @ matrix for part, matrix in zip(parts, rhs, strict=True)])


def expected_transposed(
    lhs: torch.Tensor, grad: torch.Tensor, groups: Sequence[int]
) -> torch.Tensor:
    """Return [groups, width, out]: each group's transposed rows of ``lhs`` by those of ``grad``."""
    parts = zip(lhs.split(list(groups)), grad.split(list(groups)), strict=True)
    return torch.stack([a.mT @ b for a, b in parts])


def assert_close(value: torch.Tensor, oracle: torch.Tensor, label: str) -> None:
    """float32 sums of 128 products of numbers around 1."""
    torch.testing.assert_close(
        value.detach().cpu().double(), oracle, rtol=1e-4, atol=1e-4, msg=lambda m: f"{label}: {m}"
    )
