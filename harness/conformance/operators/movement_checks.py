"""Operators that move elements and compute nothing: each by element type, and by shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from harness.conformance.operators.closeness import Expected
from harness.conformance.operators.devices import OperatorDevice
from harness.conformance.operators.element_types import TYPES, Array, dtype, of
from harness.conformance.operators.evaluation import Operation, ProgramLines, verify
from harness.conformance.operators.operand_values import SHAPES, mixed
from harness.conformance.plugin_check import checks, named_checks

Move = Callable[[Array], Operation]


def exactly(values: Array) -> Expected:
    """Expect these values and no others."""
    return Expected(of(values).name, values, 0.0)


def integers(values: Sequence[int]) -> str:
    """Return an attribute of 64-bit numbers."""
    return f"array<i64{': ' if values else ''}{', '.join(map(str, values))}>"


def _operation(
    name: str, operands: Sequence[Array], result: Array, case: str = "", **attributes: object
) -> Operation:
    text = ", ".join(f"{key} = {value}" for key, value in attributes.items())
    kept = np.ascontiguousarray(result).reshape(result.shape)
    return Operation(f"stablehlo.{name}", operands, [exactly(kept)], text, case=case)


def _transpose(x: Array, order: Sequence[int] = (2, 0, 1)) -> Operation:
    return _operation("transpose", [x], x.transpose(order), permutation=integers(order))


def _reverse(x: Array) -> Operation:
    return _operation("reverse", [x], x[::-1, :, ::-1], dimensions=integers([0, 2]))


def _reshape(x: Array) -> Operation:
    return _operation("reshape", [x], x.reshape(x.shape[2], 1, -1))


def _broadcast(x: Array) -> Operation:
    """Repeat along new dimensions and along one of size 1."""
    row = x[0, :, :1]
    result = np.broadcast_to(row[:, :], (4, x.shape[1], 3))
    return _operation("broadcast_in_dim", [row], result, broadcast_dimensions=integers([1, 2]))


def _slice(x: Array) -> Operation:
    return _operation(
        "slice",
        [x],
        x[1:4, 2:7:2, 0:3:1],
        start_indices=integers([1, 2, 0]),
        limit_indices=integers([4, 7, 3]),
        strides=integers([1, 2, 1]),
    )


def _pad(
    x: Array,
    low: Sequence[int] = (1, -2, 0),
    high: Sequence[int] = (0, 2, -1),
    interior: Sequence[int] = (2, 0, 1),
) -> Operation:
    value = x.reshape(-1)[3]
    return _operation(
        "pad",
        [x, np.asarray(value)],
        padded(x, value, low, high, interior),
        edge_padding_low=integers(low),
        edge_padding_high=integers(high),
        interior_padding=integers(interior),
    )


def padded(
    x: Array, value: object, low: Sequence[int], high: Sequence[int], interior: Sequence[int]
) -> Array:
    """Return an array with elements around and between its own; a negative number removes some."""
    for axis, (before, after, between) in enumerate(zip(low, high, interior, strict=True)):
        x = np.moveaxis(x, axis, 0)
        spread = np.full((max(len(x) + (len(x) - 1) * between, 0), *x.shape[1:]), value, x.dtype)
        spread[:: between + 1] = x
        ends = [np.full((max(size, 0), *x.shape[1:]), value, x.dtype) for size in (before, after)]
        spread = spread[max(-before, 0) : len(spread) - max(-after, 0)]
        x = np.moveaxis(np.concatenate([ends[0], spread, ends[1]]), 0, axis)
    return np.ascontiguousarray(x)


def _concatenate(x: Array) -> Operation:
    parts = [x, x[:, :2], x[:, :0], x[:, ::-1].copy()]
    return _operation("concatenate", parts, np.concatenate(parts, 1), dimension="1 : i64")


def _select(x: Array) -> Operation:
    chosen = np.arange(x.size).reshape(x.shape) % 3 == 0
    other = x[::-1].copy()
    return _operation("select", [chosen, x, other], np.where(chosen, x, other))


def _select_whole(x: Array) -> Operation:
    other = x[::-1].copy()
    return _operation("select", [np.asarray(False), x, other], other)


def _dynamic_slice(
    x: Array, starts: Sequence[int] = (1, 99, -5), sizes: Sequence[int] = (2, 3, 2)
) -> Operation:
    """Take a part whose start is moved into the operand."""
    given = [np.asarray(start, np.int32) for start in starts]
    return _operation(
        "dynamic_slice", [x, *given], x[_part(x, starts, sizes)], slice_sizes=integers(sizes)
    )


def _dynamic_update_slice(x: Array, starts: Sequence[int] = (1, 99, -5)) -> Operation:
    given = [np.asarray(start, np.int32) for start in starts]
    update = x[::-1, ::-1][:2, :3, :2].copy()
    result = x.copy()
    result[_part(x, starts, update.shape)] = update
    return _operation("dynamic_update_slice", [x, update, *given], result)


def _part(x: Array, starts: Sequence[int], sizes: Sequence[int]) -> tuple[slice, ...]:
    moved = [
        min(max(start, 0), extent - size)
        for start, extent, size in zip(starts, x.shape, sizes, strict=True)
    ]
    return tuple(slice(a, a + size) for a, size in zip(moved, sizes, strict=True))


def _barrier(x: Array) -> Operation:
    return _operation("optimization_barrier", [x], x)


MOVES: dict[str, Move] = {
    "broadcast_in_dim": _broadcast,
    "concatenate": _concatenate,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "optimization_barrier": _barrier,
    "pad": _pad,
    "reshape": _reshape,
    "reverse": _reverse,
    "select": _select,
    "slice": _slice,
    "transpose": _transpose,
}


_STARTED = {"dynamic_slice": _dynamic_slice, "dynamic_update_slice": _dynamic_update_slice}


@named_checks({f"{name}[{kind}]": (name, kind) for name in MOVES for kind in TYPES})
def by_type(device: OperatorDevice, name: str, kind: str) -> None:
    """Move the values of an element type, special ones among them."""
    x = mixed(kind, (5, 8, 3))
    verify(device, f"stablehlo.{name}", kind, MOVES[name](x))
    if name in _STARTED:
        verify(device, f"stablehlo.{name}", kind, _STARTED[name](x, (1, 2, 0)))


_EDGES: dict[str, Operation] = {
    "transpose[f32,scalar]": _transpose(mixed("f32", ()), ()),
    "transpose[f32,large]": _transpose(mixed("f32", (129, 257)), (1, 0)),
    "transpose[s32,empty]": _transpose(mixed("s32", (3, 0, 2))),
    "transpose[f32,rank 5]": _transpose(mixed("f32", (2, 3, 1, 4, 5)), (4, 2, 0, 3, 1)),
    "transpose[s8,large]": _transpose(mixed("s8", (129, 257)), (1, 0)),
    "reverse[f32,empty]": _reverse(mixed("f32", (3, 0, 2))),
    "reverse[f32,large]": _reverse(mixed("f32", (33, 5, 129))),
    "pad[f32,negative]": _pad(mixed("f32", (7, 13)), (-2, -3), (-1, -9), (0, 0)),
    "pad[f32,to nothing]": _pad(mixed("f32", (4, 3)), (-2, 0), (-2, 0), (0, 0)),
    "pad[f32,interior]": _pad(mixed("f32", (7, 13)), (0, 0), (0, 0), (3, 1)),
    "pad[f32,interior and negative]": _pad(mixed("f32", (7, 13)), (-1, 2), (1, -3), (1, 2)),
    "pad[f32,large]": _pad(mixed("f32", (129, 257)), (1, 127), (2, 0), (0, 0)),
    "select[f32,whole]": _select_whole(mixed("f32", (5, 8, 3))),
    "dynamic_slice[f32,inside]": _dynamic_slice(mixed("f32", (5, 8, 3)), (1, 2, 0)),
    "dynamic_slice[f32,all of it]": _dynamic_slice(mixed("f32", (5, 8, 3)), (3, 3, 3), (5, 8, 3)),
    "dynamic_slice[f32,empty]": _dynamic_slice(mixed("f32", (5, 8, 3)), (3, 3, 3), (0, 8, 3)),
    "dynamic_update_slice[f32,inside]": _dynamic_update_slice(mixed("f32", (5, 8, 3)), (1, 2, 0)),
    "concatenate[f32,large]": _concatenate(mixed("f32", (65, 129))),
    "reshape[f32,large]": _reshape(mixed("f32", (7, 129, 13))),
    "slice[f32,large]": _slice(mixed("f32", (65, 33, 17))),
}


@named_checks({name: (name,) for name in _EDGES})
def by_shape(device: OperatorDevice, name: str) -> None:
    """Move elements in a class of shapes, or with unusual attributes."""
    made = _EDGES[name]
    verify(device, made.name, of(made.operands[0]).name, made)


_INDICES = ("s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64")


@checks({kind: (kind,) for kind in _INDICES})
def dynamic_slice_by_index(device: OperatorDevice, kind: str) -> None:
    """Take a part that indices of this type say, and one past the end."""
    x = mixed("f32", (5, 8, 3))
    made = []
    for case, starts in (("inside", (1, 2, 0)), ("clamped", (100, 3, 2))):
        given = [np.asarray(start).astype(dtype(kind)) for start in starts]
        own = _dynamic_slice(x, starts)
        made.append(replace(own, operands=[x, *given], case=case))
    verify(device, "stablehlo.dynamic_slice", kind, *made)


@checks({f"{kind},{name}": (kind, name) for kind in ("f32", "s32", "pred") for name in SHAPES})
def broadcast_of_scalar(device: OperatorDevice, kind: str, name: str) -> None:
    """Repeat a scalar in a class of shapes."""
    value = np.asarray(mixed(kind, (3,))[1])
    result = np.full(SHAPES[name], value)
    verify(
        device,
        "stablehlo.broadcast_in_dim",
        kind,
        _operation("broadcast_in_dim", [value], result, broadcast_dimensions=integers([])),
    )


@checks({kind: (kind,) for kind in TYPES if kind != "pred"})
def iota(device: OperatorDevice, kind: str) -> None:
    """Count along each dimension."""
    shape = (2, 2) if kind in ("s2", "u2") else (5, 7)  # no number beyond the type's
    made = []
    for axis in (0, 1):
        counted = np.indices(shape)[axis]
        result = counted.astype(np.float64).astype(dtype(kind))
        made.append(
            _operation("iota", [], result, f"dimension {axis}", iota_dimension=f"{axis} : i64")
        )
    verify(device, "stablehlo.iota", kind, *made)


@checks({kind: (kind,) for kind in TYPES})
def constant(device: OperatorDevice, kind: str) -> None:
    """Return a constant, written as bytes, and one written once for all elements."""
    values = mixed(kind, (3, 5))
    rows = (", ".join(str(bool(v)).lower() for v in row) for row in values)
    as_text = f"[{', '.join(f'[{row}]' for row in rows)}]"
    data = as_text if kind == "pred" else f'"0x{values.tobytes().hex().upper()}"'
    text = Expected(kind, values).text
    made = Operation("stablehlo.constant", [], [exactly(values)], f"value = dense<{data}> : {text}")
    verify(device, "stablehlo.constant", kind, made)


@checks({kind: (kind,) for kind in ("pred", "s32", "u32", "f32", "bf16", "c64")})
def tuple_and_its_elements(device: OperatorDevice, kind: str) -> None:
    """Pack two arrays and take both out again."""
    first, second = mixed(kind, (3, 5)), mixed(kind, (4,))
    types = [Expected(kind, each).text for each in (first, second)]
    both = f"tuple<{types[0]}, {types[1]}>"
    text = f"""%t = "stablehlo.tuple"(%0, %1) : ({types[0]}, {types[1]}) -> {both}
%a = "stablehlo.get_tuple_element"(%t) {{index = 1 : i32}} : ({both}) -> {types[1]}
%b = "stablehlo.get_tuple_element"(%t) {{index = 0 : i32}} : ({both}) -> {types[0]}"""
    made = ProgramLines(
        "tuple", text, ["%a", "%b"], [first, second], [exactly(second), exactly(first)]
    )
    verify(device, "stablehlo.tuple", kind, made)
