"""How far a result may be from the exact one, and the first element that is farther."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from harness.conformance.operators.element_types import PARTS, TYPES, Array, is_float, tensor

HALF = 0.5  # ULPs: correctly rounded, which IEEE 754 asks of basic operations


@dataclass(frozen=True)
class Expected:
    """What a result has to be.

    Attributes:
        kind: the name of the result's element type.
        exact: the values, for floating-point types in a wider one where there is one.
        ulps: how many units in the last place a result may be away.
        absolute: how far a result may be away besides, one number for all or for each element.
        others: other values that are right as well, such as those of flushed operands.
        ignored: where any value is right, because StableHLO leaves it to the implementation.
        zero_sign: whether the sign of a zero counts.
        type: the type in the program, if it says less than the values, such as ``tensor<?xf32>``.
    """

    kind: str
    exact: Array
    ulps: float = HALF
    absolute: Any = 0.0
    others: Sequence[Array] = field(default=())
    ignored: Any = False
    zero_sign: bool = True
    type: str = ""

    @property
    def text(self) -> str:
        """The type of the result in a program."""
        return self.type or tensor(self.exact.shape, TYPES[self.kind])


def first_difference(result: Array, expected: Expected, name: str = "") -> str:
    """Return where a result is wrong first, by how much, and how often, or ""."""
    if result.shape != expected.exact.shape:
        return f"{name}the shape is {result.shape}, expected {expected.exact.shape}"
    right = np.broadcast_to(np.asarray(expected.ignored), result.shape).copy()
    for exact in (expected.exact, *expected.others):
        right |= _right(result, exact, expected)
    if right.all():
        return ""
    where = tuple(int(index) for index in np.argwhere(~right)[0])
    exact = _wide(expected.exact[where]) if is_float(result.dtype) else expected.exact[where]
    words = f"{name}at {list(where)} it is {_shown(result[where])}, expected {_shown(exact)}"
    if is_float(result.dtype) and np.isfinite(exact) and np.isfinite(float(result[where])):
        distance = abs(_wide(result[where]) - exact) / _ulp(np.asarray(exact), result.dtype)
        words += f": {float(distance):.3g} ULPs away, where {expected.ulps:g} are allowed"
    return f"{words} ({int((~right).sum())} of {right.size} elements are wrong)"


def _right(result: Array, exact: Array, expected: Expected) -> Any:
    if result.dtype in PARTS:
        part = PARTS[result.dtype]
        return _near_complex(result, exact, part, expected)
    if not is_float(result.dtype):
        same = result.astype(np.int64) == exact.astype(np.int64)  # int2 has no comparison
        return np.asarray(same)
    return _near(result, _wide(exact), expected)


def _near(result: Array, exact: Array, expected: Expected) -> Any:
    """Return which floating-point numbers are near enough; NaN is near any NaN."""
    limits = ml_dtypes.finfo(result.dtype)
    with np.errstate(all="ignore"):
        rounded = _wide(exact.astype(result.dtype))
        value = _wide(result)
        allowed = expected.ulps * _ulp(exact, result.dtype) + expected.absolute
        near = (value == rounded) | (np.abs(value - exact) <= allowed)
        beyond = np.abs(exact) + allowed > float(limits.max)
        near |= beyond & ~np.isfinite(value) & (np.isnan(value) | (value * exact > 0))
    near |= np.isnan(value) & (np.isnan(exact) | np.isnan(rounded))
    tiny = (np.abs(exact) <= float(limits.smallest_normal)) & (exact != 0)
    near |= tiny & (value == 0)  # IEEE 754 says otherwise, but many devices flush
    if expected.zero_sign and _has_negative_zero(result.dtype):
        near &= ~((exact == 0) & (value == 0) & (np.signbit(exact) != np.signbit(value)))
    return np.asarray(near)


def _near_complex(result: Array, exact: Array, part: np.dtype[Any], expected: Expected) -> Any:
    """Return which complex numbers are near enough: as far as the larger part allows."""
    with np.errstate(all="ignore"):
        allowed = expected.ulps * _ulp(np.abs(exact), part) + expected.absolute
        near = np.abs(result.astype(exact.dtype) - exact) <= allowed
        same = (result.real == exact.real.astype(part)) & (result.imag == exact.imag.astype(part))
    return np.asarray(near | same | (np.isnan(result) & np.isnan(exact)))


def _ulp(exact: Array, kind: np.dtype[Any]) -> Any:
    """Return the unit in the last place of each number, in the type of the results."""
    limits = ml_dtypes.finfo(kind)
    size = np.abs(exact)
    size = np.where(np.isfinite(size) & (size > 0), size, float(limits.smallest_normal))
    exponent = np.clip(np.floor(np.log2(size)), int(limits.minexp), int(limits.maxexp) - 1)
    return np.ldexp(np.float64(1), (exponent - int(limits.nmant)).astype(int))


def _wide(values: Any) -> Any:
    kind = np.longdouble if values.dtype == np.longdouble else np.float64
    return np.asarray(values).astype(kind)


def _has_negative_zero(kind: np.dtype[Any]) -> bool:
    return math.copysign(1.0, float(np.asarray(-0.0).astype(kind))) < 0


def _shown(value: Any) -> str:
    if isinstance(value, np.complexfloating):
        return str(complex(value))
    if isinstance(value, np.bool_):
        return str(bool(value)).lower()
    if isinstance(value, np.integer) or (value.dtype.kind in "iuV" and not is_float(value.dtype)):
        return str(int(value))
    return f"{float(value):.17g}" if value.dtype.itemsize >= 8 else f"{float(value):.9g}"
