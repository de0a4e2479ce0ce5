"""Operators that compare, choose, order and convert, and those on bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from harness.conformance.operators.closeness import Expected
from harness.conformance.operators.devices import OperatorDevice
from harness.conformance.operators.element_types import (
    COMPLEX,
    FLOATS,
    INTEGERS,
    TYPES,
    UNSIGNED,
    Array,
    dtype,
    of,
    tensor,
)
from harness.conformance.operators.evaluation import Operation, verify
from harness.conformance.operators.movement_checks import exactly
from harness.conformance.operators.operand_values import mixed, numbers, specials
from harness.conformance.operators.regions import compared, comparison, comparison_type
from harness.conformance.plugin_check import checks, named_checks

_DIRECTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}
_REAL = ("pred", *INTEGERS, *FLOATS)


def comparable(values: Array) -> Array:
    """Return values in a type that NumPy can compare, in the same order."""
    if values.dtype.kind in "biufc" and values.dtype.itemsize > 1:
        return values
    return values.astype(np.float64 if of(values).name in FLOATS else np.int64)


def _compare(direction: str, how: str, operands: Sequence[Array], result: Any) -> Operation:
    attributes = comparison(direction, how)
    return Operation(
        "stablehlo.compare", operands, [exactly(np.asarray(result))], attributes, case=direction
    )


@checks({kind: (kind,) for kind in _REAL})
def compare(device: OperatorDevice, kind: str) -> None:
    """Compare each special value with each other, in all six ways."""
    first, second = np.meshgrid(specials(kind), specials(kind), indexing="ij")
    a, b = comparable(first), comparable(second)
    with np.errstate(invalid="ignore"):
        made = [
            _compare(direction, comparison_type(kind), [first, second], meaning(a, b))
            for direction, meaning in _DIRECTIONS.items()
        ]
    verify(device, "stablehlo.compare", kind, *made)


@checks({kind: (kind,) for kind in COMPLEX})
def compare_equal(device: OperatorDevice, kind: str) -> None:
    """Compare complex numbers for equality."""
    first, second = np.meshgrid(specials(kind), specials(kind), indexing="ij")
    made = [
        _compare(direction, "FLOAT", [first, second], _DIRECTIONS[direction](first, second))
        for direction in ("EQ", "NE")
    ]
    verify(device, "stablehlo.compare", kind, *made)


@checks({kind: (kind,) for kind in ("bf16", "f16", "f32", "f64")})
def compare_in_total_order(device: OperatorDevice, kind: str) -> None:
    """Order all numbers, the zeros by sign, and NaN last."""
    values = specials(kind)
    values = np.concatenate([values, -values[-1:]])
    bits = values.view(f"i{values.dtype.itemsize}").astype(np.int64)
    most = (1 << (8 * values.dtype.itemsize - 1)) - 1
    keys = np.where(bits < 0, ~(bits & most), bits)
    first, second = np.meshgrid(values, values, indexing="ij")
    a, b = np.meshgrid(keys, keys, indexing="ij")
    made = [
        _compare(direction, "TOTALORDER", [first, second], _DIRECTIONS[direction](a, b))
        for direction in ("LT", "GT")
    ]
    verify(device, "stablehlo.compare", kind, *made)


@checks({kind: (kind,) for kind in (*INTEGERS, *FLOATS)})
def clamp(device: OperatorDevice, kind: str) -> None:
    """Limit elements by scalars, and by arrays of bounds."""
    x = mixed(kind, (7, 13))
    if kind in FLOATS:
        x = np.where(np.isnan(comparable(x)), np.ones(1, x.dtype), x)
    order = comparable(x)
    low, high = np.sort(comparable(numbers(kind, (2,), 5)))
    lows, highs = comparable(numbers(kind, x.shape, 6)), comparable(numbers(kind, x.shape, 7))
    lows, highs = np.minimum(lows, highs), np.maximum(lows, highs)
    made = []
    for case, bounds in (("scalars", (low, high)), ("arrays", (lows, highs))):
        own = [np.asarray(each).astype(x.dtype) for each in bounds]
        result = np.minimum(np.maximum(order, bounds[0]), bounds[1]).astype(x.dtype)
        operands = [own[0], x, own[1]]
        made.append(
            Operation(
                "stablehlo.clamp", operands, [Expected(kind, result, zero_sign=False)], case=case
            )
        )
    verify(device, "stablehlo.clamp", kind, *made)


@checks({kind: (kind,) for kind in FLOATS})
def is_finite(device: OperatorDevice, kind: str) -> None:
    """Tell finite numbers from infinities and NaN."""
    x = specials(kind)
    result = np.isfinite(comparable(x))
    made = Operation("stablehlo.is_finite", [x], [exactly(np.asarray(result))])
    verify(device, "stablehlo.is_finite", kind, made)


def _conversions() -> dict[str, tuple[str, str]]:
    """Return pairs: each type with those that every program has, and both ways."""
    pairs = []
    for kind in TYPES:
        for other in ("pred", "s32", "u32", "f32"):
            pairs += [(kind, other), (other, kind)]
    pairs += [("f64", "s64"), ("s64", "f64"), ("f64", "u64"), ("f64", "bf16"), ("f64", "f16")]
    pairs += [("f16", "bf16"), ("bf16", "f16"), ("s8", "s64"), ("u8", "s64"), ("s64", "s8")]
    pairs += [("c64", "c128"), ("c128", "c64"), ("f64", "c128"), ("c128", "f64")]
    return {f"{a} to {b}": (a, b) for a, b in dict.fromkeys(pairs) if a != b}


@checks(_conversions())
def convert(device: OperatorDevice, kind: str, to: str) -> None:
    """Convert numbers that both types have, and round others to a neighbour."""
    exact = [0, 1, 2, 3, 1, 0]
    low = 0 if "pred" in (kind, to) or kind in UNSIGNED or to in UNSIGNED else -2
    exact = [max(low, v) for v in (*exact, -1, -2)]
    if "2" in (kind[1:], to[1:]):
        exact = [min(v, 1) for v in exact]
    values = np.array([min(v, 1) for v in exact] if "pred" in (kind, to) else exact)
    x = values.astype(np.float64).astype(dtype(kind))
    wide: Array = np.asarray(values, np.float64)
    if kind in FLOATS and to in FLOATS:
        x = np.concatenate([x, numbers(kind, (50,), 8)])
        wide = x.astype(np.float64)
    elif kind in FLOATS and to in INTEGERS and to not in ("s2", "u2"):
        fractions = np.array([0.5, 1.5, 1.25, 2.75] + [-0.5, -1.5, -2.75] * (low < 0))
        x = np.concatenate([x, fractions.astype(dtype(kind))])
        wide = np.trunc(x.astype(np.float64))
    expected = Expected(to, wide if to in FLOATS else wide.astype(dtype(to)), 0.9999)
    verify(
        device,
        "stablehlo.convert",
        kind,
        Operation("stablehlo.convert", [x], [expected]),
        required=to in ("pred", "s32", "u32", "f32"),
    )


_SAME_WIDTH = (
    *("f32 to s32", "f32 to u32", "s32 to f32", "u32 to f32", "s32 to u32", "bf16 to u16"),
    *("u16 to bf16", "f16 to s16", "bf16 to f16", "f64 to u64", "u64 to f64", "f64 to s64"),
    *("s8 to u8", "f8E5M2 to u8", "u8 to f8E4M3FN", "s4 to u4"),
)


@checks({name: tuple(name.split(" to ")) for name in _SAME_WIDTH})
def bitcast_convert(device: OperatorDevice, kind: str, to: str) -> None:
    """Take the bits of one type as another of the same width."""
    x = mixed(kind, (7, 13))
    if to in FLOATS:  # NaN may lose its bits on the way
        x = np.ones(1, dtype(to)).view(dtype(kind)) * np.ones((7, 13), dtype(kind))
    verify(
        device,
        "stablehlo.bitcast_convert",
        kind,
        Operation("stablehlo.bitcast_convert", [x], [exactly(x.view(dtype(to)))]),
    )


_BITS: dict[str, Callable[..., int | None]] = {
    "popcnt": lambda _, a: a.bit_count(),
    "count_leading_zeros": lambda bits, a: bits - a.bit_length(),
    "shift_left": lambda bits, a, b: (a << b) & ((1 << bits) - 1) if b < bits else 0,
    "shift_right_logical": lambda bits, a, b: a >> b if b < bits else 0,
    "shift_right_arithmetic": lambda bits, a, b: (
        ((a - (a >> (bits - 1) << bits)) >> min(b, bits)) & ((1 << bits) - 1)
    ),
}
_SHIFTS = ("shift_left", "shift_right_logical", "shift_right_arithmetic")


@named_checks({f"{name}[{kind}]": (name, kind) for name in _BITS for kind in INTEGERS})
def on_bits(device: OperatorDevice, name: str, kind: str) -> None:
    """Count bits or move them, also by as many as there are and more."""
    bits = ml_dtypes.iinfo(dtype(kind)).bits
    values = specials(kind)
    rows = [[int(v) & ((1 << bits) - 1)] for v in values]
    operands = [values]
    if name in _SHIFTS:
        highest = int(ml_dtypes.iinfo(dtype(kind)).max)
        amounts = [n for n in (0, 1, bits - 1, bits, bits + 1, 2 * bits) if n <= highest]
        rows = [[*row, n] for row in rows for n in amounts]
        shape = len(values), len(amounts)
        first = np.repeat(values, len(amounts)).reshape(shape)
        operands = [first, np.array(amounts * len(values)).astype(dtype(kind)).reshape(shape)]
    results = np.array([_BITS[name](bits, *row) for row in rows], np.uint64)
    signed = results.astype(np.int64)
    if kind not in UNSIGNED and bits < 64:
        signed = np.where(signed >> (bits - 1) & 1, signed - (1 << bits), signed)
    wide = results if kind == "u64" else signed
    expected = exactly(wide.astype(dtype(kind)).reshape(operands[0].shape))
    verify(device, f"stablehlo.{name}", kind, Operation(f"stablehlo.{name}", operands, [expected]))


@checks({kind: (kind,) for kind in COMPLEX})
def parts(device: OperatorDevice, kind: str) -> None:
    """Take complex numbers apart and put them together."""
    x = specials(kind)
    real, imaginary = x.real.copy(), x.imag.copy()
    verify(
        device,
        "stablehlo.complex",
        kind,
        Operation("stablehlo.real", [x], [exactly(real)], case="real"),
        Operation("stablehlo.imag", [x], [exactly(imaginary)], case="imag"),
        Operation("stablehlo.complex", [real, imaginary], [exactly(x)], case="complex"),
    )


@checks(
    {
        f"{kind},{exponent} and {mantissa} bits": (kind, exponent, mantissa)
        for kind in ("f16", "bf16", "f32", "f64")
        for exponent, mantissa in ((5, 10), (8, 7), (4, 3), (5, 2), (8, 23))
    }
)
def reduce_precision(device: OperatorDevice, kind: str, exponent: int, mantissa: int) -> None:
    """Round to fewer bits, to infinity or to zero."""
    x = np.concatenate([specials(kind), numbers(kind, (91,), 9, 12.0)])
    with np.errstate(invalid="ignore"):
        x = x[~(np.abs(x) < ml_dtypes.finfo(x.dtype).smallest_normal) | (x == 0)]
    wide = x.astype(np.float64)
    low, high = 2.0 ** (2 - (1 << (exponent - 1))), (1 << (exponent - 1)) - 1
    with np.errstate(all="ignore"):
        fraction, power = np.frexp(wide)
        result = np.ldexp(np.rint(np.ldexp(fraction, mantissa + 1)), power - mantissa - 1)
        result = np.where(np.abs(result) >= 2.0 ** (high) * 2, np.copysign(np.inf, wide), result)
        result = np.where(np.abs(result) < low, np.copysign(0, wide), result)
    result = np.where(np.isfinite(wide), result, wide)
    made = Operation(
        "stablehlo.reduce_precision",
        [x],
        [Expected(kind, result, 0.0)],
        f"exponent_bits = {exponent} : i32, mantissa_bits = {mantissa} : i32",
    )
    verify(device, "stablehlo.reduce_precision", kind, made)


def _sort(
    operands: Sequence[Array], results: Sequence[Array], direction: str, axis: int, case: str = ""
) -> Operation:
    types = [tensor((), of(each)) for each in operands for _ in range(2)]
    arguments = ", ".join(f"%s{n}: {text}" for n, text in enumerate(types))
    region = f"""
      ^bb0({arguments}):
        {compared("%c", ("%s0", "%s1"), direction, of(operands[0]).name)}
        "stablehlo.return"(%c) : (tensor<i1>) -> ()
      """
    return Operation(
        "stablehlo.sort",
        operands,
        [exactly(np.ascontiguousarray(each)) for each in results],
        f"dimension = {axis} : i64, is_stable = true",
        [region],
        case,
    )


def _sortable(kind: str) -> Array:
    """Return values without NaN and with one zero, whose order is known."""
    x = mixed(kind, (7, 13))
    order = comparable(x)
    return np.where((order == 0) | (order != order), np.zeros(1, x.dtype), x)  # noqa: PLR0124


@checks({kind: (kind,) for kind in _REAL})
def sort(device: OperatorDevice, kind: str) -> None:
    """Sort rows and columns, ascending and descending, and carry places along in order."""
    x = _sortable(kind)
    places = np.broadcast_to(np.arange(13, dtype=np.int32), x.shape).copy()
    rows = np.argsort(comparable(x), axis=1, kind="stable")
    columns = np.argsort(comparable(x), axis=0, kind="stable")
    down = 12 - np.argsort(comparable(x)[:, ::-1], axis=1, kind="stable")[:, ::-1]
    take = np.take_along_axis
    verify(
        device,
        "stablehlo.sort",
        kind,
        _sort([x, places], [take(x, rows, 1), take(places, rows, 1)], "LT", 1, "two operands"),
        _sort([x], [take(x, columns, 0)], "LT", 0, "columns"),
        _sort([x, places], [take(x, down, 1), take(places, down, 1)], "GT", 1, "descending"),
    )


@checks({"size 1": (1,), "empty": (0,), "large": (3001,)})
def sort_of_size(device: OperatorDevice, size: int) -> None:
    """Sort a vector of a size."""
    x = numbers("f32", (size,), 11)
    verify(device, "stablehlo.sort", "f32", _sort([x], [np.sort(x)], "LT", 0))
