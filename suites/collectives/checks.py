"""Assertions, one per layer, whose messages say what was expected and what came."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from harness.ir import Collective, Program, TensorType
from harness.model.mismatch import NumbersError
from suites.collectives.data import DTYPES, MLIR_NAMES, Groups

_MLIR = {DTYPES[name]: mlir for name, mlir in MLIR_NAMES.items()}


def type_of(array: np.ndarray) -> TensorType:
    return TensorType(array.shape, _MLIR[array.dtype])


def check_signature(
    program: Program, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
) -> None:
    """The program takes what the model takes, in its order, and returns what it returns."""
    expected = _signature(map(type_of, inputs), map(type_of, outputs))
    got = _signature(program.inputs, program.outputs)
    assert got == expected, f"signature: expected {expected}, got {got}"


def _signature(inputs: Iterable[TensorType], outputs: Iterable[TensorType]) -> str:
    return " -> ".join(f"({', '.join(map(str, types))})" for types in (inputs, outputs))


def check_groups(collective: Collective, groups: Groups, world: int) -> None:
    """The collective's replica groups, with the default of all replicas filled in."""
    everyone = (tuple(range(world)),)
    expected, got = groups or everyone, collective.groups or everyone
    assert sorted(got) == sorted(expected), f"groups: expected {expected}, got {got}"


def check_reducer(collective: Collective, operation: str) -> None:
    got = collective.reducer
    assert got == operation, f"reducer: expected {operation}, got {got}"


def check_operands(collective: Collective, operands: int) -> None:
    """As many operands as tensors went in, and as many results."""
    got = (len(collective.operands), len(collective.results))
    assert got == (operands, operands), (
        f"operands and results: expected {operands} and {operands}, got {got[0]} and {got[1]}"
    )


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
