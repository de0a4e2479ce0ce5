"""Comparison of the numbers that each rank has."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.model.mismatch import NumbersError


def check_numbers(results: Sequence[Sequence[np.ndarray]], *expected: Sequence[np.ndarray]) -> None:
    """Every rank's outputs; `expected[output][rank]`. Equal in value, dtype and shape."""
    for rank, outputs in enumerate(results):
        assert len(outputs) == len(expected), (
            f"outputs: expected {len(expected)}, got {len(outputs)}"
        )
        for output, got in enumerate(outputs):
            _check_array(got, expected[output][rank], f"numbers: rank {rank} output {output}")


def _check_array(got: np.ndarray, expected: np.ndarray, where: str) -> None:
    if (got.dtype, got.shape) != (expected.dtype, expected.shape):
        raise NumbersError(
            f"{where}: expected {expected.dtype}{expected.shape}, got {got.dtype}{got.shape}"
        )
    with np.errstate(invalid="ignore"):
        nan = np.isnan(got.astype(np.float64)) & np.isnan(expected.astype(np.float64))
    differs = (got != expected) & ~nan
    if differs.any():
        index = tuple(int(i) for i in np.argwhere(differs)[0])
        raise NumbersError(
            f"{where} at {index}: expected {expected[index]}, got {got[index]} "
            f"({int(differs.sum())} of {differs.size} elements differ)"
        )
