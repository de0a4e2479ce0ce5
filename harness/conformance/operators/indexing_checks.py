"""Gathers and scatters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from harness.conformance.operators.closeness import Expected
from harness.conformance.operators.devices import OperatorDevice
from harness.conformance.operators.element_types import TYPES, Array
from harness.conformance.operators.evaluation import Operation, verify
from harness.conformance.operators.movement_checks import exactly, integers
from harness.conformance.operators.operand_values import mixed, numbers
from harness.conformance.operators.reduction_checks import NUMBERS, near, wide
from harness.conformance.operators.regions import folding
from harness.conformance.plugin_check import named_checks

_INDICES = ("s8", "u8", "s32", "u32", "s64", "u64")


def _rows(x: Array, kind: str) -> Operation:
    """Take whole rows, one of them twice, and one past the end, which is moved to the last."""
    rows = np.array([3, 0, 3, 120]).astype(TYPES[kind].dtype)
    result = x[np.minimum(rows.astype(int), len(x) - 1)]
    return Operation(
        "stablehlo.gather",
        [x, rows],
        [exactly(result)],
        "dimension_numbers = #stablehlo.gather<offset_dims = [1, 2], collapsed_slice_dims = [0], "
        "start_index_map = [0], index_vector_dim = 1>, "
        f"slice_sizes = {integers([1, *x.shape[1:]])}",
    )


def _elements(x: Array, kind: str) -> Operation:
    """Take single elements, by their three indices."""
    places = np.array([[1, 2, 0], [4, 0, 2], [0, 7, 1], [1, 2, 0]])
    result = x[places[:, 0], places[:, 1], places[:, 2]]
    return Operation(
        "stablehlo.gather",
        [x, places.astype(TYPES[kind].dtype)],
        [exactly(result)],
        "dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0, 1, 2], "
        f"start_index_map = [0, 1, 2], index_vector_dim = 1>, slice_sizes = {integers([1, 1, 1])}",
    )


def _windows(x: Array, kind: str) -> Operation:
    """Take parts of 2 by 3, whose indices are in another order, and moved inside."""
    places = np.array([[[1, 2], [5, 1]], [[0, 0], [99, 99]]])
    parts = []
    for column, row in places.reshape(-1, 2):
        r, c = min(row, x.shape[0] - 2), min(column, x.shape[1] - 3)
        parts.append(x[r : r + 2, c : c + 3, :1])
    result = np.stack(parts).reshape(2, 2, 2, 3, 1)
    return Operation(
        "stablehlo.gather",
        [x, places.astype(TYPES[kind].dtype)],
        [exactly(result)],
        "dimension_numbers = #stablehlo.gather<offset_dims = [2, 3, 4], "
        f"start_index_map = [1, 0], index_vector_dim = 2>, slice_sizes = {integers([2, 3, 1])}",
    )


_GATHERS: dict[str, Callable[[Array, str], Operation]] = {
    "rows": _rows,
    "elements": _elements,
    "windows": _windows,
}


@named_checks(
    {f"gather_{name}[{kind}]": (name, kind, "s32") for name in _GATHERS for kind in TYPES}
    | {
        f"gather_{name}[f32 by {index}]": (name, "f32", index)
        for name in _GATHERS
        for index in _INDICES
        if index != "s32"
    }
)
def gather(device: OperatorDevice, name: str, kind: str, index: str) -> None:
    """Take parts of an array, whose places are in another one."""
    made = _GATHERS[name](mixed(kind, (5, 8, 3)), index)
    verify(device, "stablehlo.gather", kind, made)


_FOLDS: dict[str, Any] = {
    "add": np.add,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
}
_PLACES = {  # rows of 7; those outside change nothing
    "unique": [5, 0, 3, 6],
    "overlapping": [5, 0, 5, 5],
    "out of bounds": [5, -1, 7, 100],
    "none": [],
}


@named_checks(
    {
        f"scatter_{name}[{kind},{places}]": (name, kind, places)
        for name in _FOLDS
        for kind in NUMBERS
        for places in _PLACES
        if kind in ("f32", "s32") or (name == "add" and places == "overlapping")
    }
)
def scatter(device: OperatorDevice, name: str, kind: str, places: str) -> None:
    """Combine rows with those of an array whose places are given."""
    x, rows = numbers(kind, (7, 13), 1), np.array(_PLACES[places], np.int32)
    updates = numbers(kind, (len(rows), 13), 2)
    result, sizes = wide(x).copy(), np.abs(wide(x)).astype(float)
    for row, update in zip(rows, wide(updates), strict=True):
        if 0 <= row < len(x):
            result[row] = _FOLDS[name](result[row], update)
            added = sizes[row] + np.abs(update)
            sizes[row] = added if name == "add" else np.maximum(np.abs(result[row]), added)
    made = _scatter([x, rows, updates], near(kind, result, sizes, 4), folding(name, kind))
    verify(device, "stablehlo.scatter", kind, made)


def _scatter(
    operands: Sequence[Array], expected: Expected, region: str, more: str = ""
) -> Operation:
    return Operation(
        "stablehlo.scatter",
        operands,
        [expected],
        "scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], "
        "inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], "
        f"index_vector_dim = 1>{more}",
        [region],
    )


@named_checks({f"scatter_set[{kind}]": (kind,) for kind in TYPES})
def scatter_set(device: OperatorDevice, kind: str) -> None:
    """Replace rows, and none that is outside."""
    x, rows = mixed(kind, (7, 13)), np.array([5, 0, 9, 3], np.int32)
    updates = mixed(kind, (4, 13))[::-1].copy()
    result = x.copy()
    result[[5, 0, 3]] = updates[[0, 1, 3]]
    text = f"tensor<{TYPES[kind].text}>"
    region = f"""
      ^bb0(%x: {text}, %y: {text}):
        "stablehlo.return"(%y) : ({text}) -> ()
      """
    made = _scatter([x, rows, updates], exactly(result), region, ", unique_indices = true")
    verify(device, "stablehlo.scatter", kind, made)
