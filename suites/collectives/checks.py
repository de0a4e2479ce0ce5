"""Assertions, one per layer, whose messages say what was expected and what came."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from harness.ir import Collective, Program, TensorType
from suites.shared.groups import Groups
from suites.shared.values import DTYPES

_MLIR = {
    DTYPES["float32"]: "f32",
    DTYPES["bfloat16"]: "bf16",
    DTYPES["float16"]: "f16",
    DTYPES["int32"]: "i32",
    DTYPES["int64"]: "i64",
    DTYPES["uint8"]: "ui8",
    DTYPES["bool"]: "i1",
}


def type_of(array: np.ndarray) -> TensorType:
    return TensorType(array.shape, _MLIR[array.dtype])


def check_signature(
    program: Program, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
) -> None:
    """Check that the program's parameters and results are the model's, in the same order."""
    expected = _signature(map(type_of, inputs), map(type_of, outputs))
    got = _signature(program.inputs, program.outputs)
    assert got == expected, f"signature: expected {expected}, got {got}"


def _signature(inputs: Iterable[TensorType], outputs: Iterable[TensorType]) -> str:
    return " -> ".join(f"({', '.join(map(str, types))})" for types in (inputs, outputs))


def check_groups(collective: Collective, groups: Groups, world: int) -> None:
    """Check the collective's replica groups; no groups mean one group of all replicas."""
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
