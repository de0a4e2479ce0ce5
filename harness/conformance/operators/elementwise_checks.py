"""Operators on each element alone: special values by element type, and shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

from harness.conformance.operators.accuracy import ulps
from harness.conformance.operators.closeness import Expected
from harness.conformance.operators.devices import OperatorDevice
from harness.conformance.operators.element_types import (
    COMPLEX,
    FLOATS,
    INTEGERS,
    PARTS,
    SIGNED,
    UNSIGNED,
    Array,
    dtype,
    of,
    tensor,
)
from harness.conformance.operators.evaluation import Operation, ProgramLines, verify
from harness.conformance.operators.operand_values import SHAPES, denormals, numbers, specials
from harness.conformance.plugin_check import named_checks

Meaning = Callable[..., Any]


@dataclass(frozen=True)
class Elementwise:
    """What an operator means on numbers, for each group of element types that it takes.

    ``real`` is of wider floating-point numbers, ``integer`` of Python's integers, or None where
    StableHLO leaves the result to the implementation, and ``boolean`` of booleans.
    """

    arity: int
    real: Meaning | None = None
    integer: Meaning | None = None
    boolean: Meaning | None = None
    complex: Meaning | None = None
    integers: Sequence[str] = INTEGERS

    @property
    def kinds(self) -> Iterator[str]:
        """The element types that the operator takes."""
        yield from FLOATS[::-1] if self.real else ()
        yield from self.integers if self.integer else ()
        yield from ("pred",) if self.boolean else ()
        yield from COMPLEX if self.complex else ()


def _sign(x: Any) -> Any:
    return np.where(x == 0, x, np.sign(x))


def _away_from_zero(x: Any) -> Any:
    size = np.abs(x)
    whole = np.trunc(size)
    with np.errstate(invalid="ignore"):
        return np.copysign(whole + (size - whole >= 0.5), x)


def _logistic(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _larger(a: Any, b: Any) -> Any:
    zero = np.where(np.signbit(a), b, a)  # of two zeros, the positive one
    return np.where((a == 0) & (b == 0), zero, np.maximum(a, b))


def _smaller(a: Any, b: Any) -> Any:
    return -_larger(-a, -b)


def _quotient(a: int, b: int) -> int | None:
    return None if b == 0 else abs(a) // abs(b) * (-1 if (a < 0) != (b < 0) else 1)


def _remainder(a: int, b: int) -> int | None:
    return None if b == 0 else abs(a) % abs(b) * (-1 if a < 0 else 1)


def _power(a: int, b: int) -> int | None:
    return None if b < 0 or (b > 64 and abs(a) > 1) else a ** (b % 2 + 2 if b > 64 else b)


def _left(a: int, b: int) -> int | None:
    return None if b < 0 else a << b if b < 64 else 0


def _right(a: int, b: int) -> int | None:
    return None if b < 0 else a >> b


UNARY = {
    "abs": Elementwise(1, np.abs, abs, None, np.abs, SIGNED),
    "cbrt": Elementwise(1, np.cbrt),
    "ceil": Elementwise(1, np.ceil),
    "cosine": Elementwise(1, np.cos, complex=np.cos),
    "exponential": Elementwise(1, np.exp, complex=np.exp),
    "exponential_minus_one": Elementwise(1, np.expm1, complex=np.expm1),
    "floor": Elementwise(1, np.floor),
    "log": Elementwise(1, np.log, complex=np.log),
    "log_plus_one": Elementwise(1, np.log1p, complex=np.log1p),
    "logistic": Elementwise(1, _logistic, complex=_logistic),
    "negate": Elementwise(1, np.negative, lambda a: -a, None, np.negative),
    "not": Elementwise(1, None, lambda a: ~a, np.logical_not),
    "round_nearest_afz": Elementwise(1, _away_from_zero),
    "round_nearest_even": Elementwise(1, np.rint),
    "rsqrt": Elementwise(1, lambda x: 1 / np.sqrt(x), complex=lambda x: 1 / np.sqrt(x)),
    "sign": Elementwise(1, _sign, lambda a: (a > 0) - (a < 0), None, np.sign, SIGNED),
    "sine": Elementwise(1, np.sin, complex=np.sin),
    "sqrt": Elementwise(1, np.sqrt, complex=np.sqrt),
    "tan": Elementwise(1, np.tan, complex=np.tan),
    "tanh": Elementwise(1, np.tanh, complex=np.tanh),
}
BINARY = {
    "add": Elementwise(2, np.add, lambda a, b: a + b, np.logical_or, np.add),
    "and": Elementwise(2, None, lambda a, b: a & b, np.logical_and),
    "atan2": Elementwise(2, np.arctan2),
    "divide": Elementwise(2, np.divide, _quotient, None, np.divide),
    "maximum": Elementwise(2, _larger, max, np.logical_or),
    "minimum": Elementwise(2, _smaller, min, np.logical_and),
    "multiply": Elementwise(2, np.multiply, lambda a, b: a * b, np.logical_and, np.multiply),
    "or": Elementwise(2, None, lambda a, b: a | b, np.logical_or),
    "power": Elementwise(2, np.power, _power, None, np.power),
    "remainder": Elementwise(2, np.fmod, _remainder),
    "shift_left": Elementwise(2, None, _left),
    "shift_right_arithmetic": Elementwise(2, None, _right, integers=SIGNED),
    "shift_right_logical": Elementwise(2, None, _right, integers=UNSIGNED),
    "subtract": Elementwise(2, np.subtract, lambda a, b: a - b, None, np.subtract),
    "xor": Elementwise(2, None, lambda a, b: a ^ b, np.logical_xor),
}
OPERATORS: Mapping[str, Elementwise] = UNARY | BINARY
_ORDER = ("maximum", "minimum")  # NaN and zeros have checks of their own
_ROUNDED = ("add", "subtract", "multiply", "divide")  # the host's own f64 is exact


def _parameters() -> Iterator[tuple[str, tuple[str, str]]]:
    for name, operator in OPERATORS.items():
        for kind in operator.kinds:
            yield f"{name}[{kind}]", (name, kind)


def _shapes() -> Iterator[tuple[str, tuple[str, str, str]]]:
    for name, operator in OPERATORS.items():
        kinds = list(operator.kinds)
        kind = next(each for each in ("f32", "s32", "u32") if each in kinds)
        for shape in SHAPES:
            yield f"{name}[{kind},{shape}]", (name, kind, shape)


@named_checks(dict(_parameters()))
def by_type(device: OperatorDevice, name: str, kind: str) -> None:
    """Compute special values and random ones of an element type."""
    values = specials(kind)
    if name in _ORDER and kind in FLOATS:
        values = values[~np.isnan(values) & (values != 0)]
    count, spread = len(values), 0.0 if kind in COMPLEX else 6.0
    first = numbers(kind, (7, 13), 1, spread)
    if OPERATORS[name].arity == 1:
        edges, others = [values], [first]
    else:
        edges = [np.repeat(values[:, None], count, 1), np.repeat(values[None, :], count, 0)]
        others = [first, numbers(kind, (7, 13), 2, spread)]
    verify(
        device,
        f"stablehlo.{name}",
        kind,
        operation(name, edges, "special values"),
        operation(name, others, "other values"),
    )


@named_checks(dict(_shapes()))
def by_shape(device: OperatorDevice, name: str, kind: str, shape: str) -> None:
    """Compute an array of a class of shapes."""
    operands = [numbers(kind, SHAPES[shape], seed) for seed in range(OPERATORS[name].arity)]
    verify(device, f"stablehlo.{name}", kind, operation(name, operands))


_WITH_DENORMALS = ("bf16", "f16", "f32", "f64")


@named_checks(
    {
        f"{name}_of_denormals[{kind}]": (name, kind)
        for name, operator in OPERATORS.items()
        for kind in _WITH_DENORMALS
        if operator.real
    }
)
def of_denormals(device: OperatorDevice, name: str, kind: str) -> None:
    """Compute the smallest numbers of an element type, as they are or as zeros."""
    small, ordinary = denormals(kind), specials(kind)[1:5]
    operands = [small]
    if OPERATORS[name].arity == 2:
        others = np.concatenate([small, ordinary])
        first, second = np.meshgrid(others, others, indexing="ij")
        operands = [first, second]
    made = operation(name, operands)
    if ulps(name, kind) > 1 or name in _ORDER:  # as zeros they are equal: either is the larger one
        made = replace(made, expected=[_between(made.expected[0], name, kind, operands)])
    verify(device, f"stablehlo.{name}", kind, made)


def _between(expected: Expected, name: str, kind: str, operands: Sequence[Array]) -> Expected:
    """Allow what any smaller operands would return."""
    normal, meaning = float(ml_dtypes.finfo(dtype(kind)).smallest_normal), OPERATORS[name].real
    assert meaning
    distances = [np.full(operands[0].shape, 2 * normal if name in _ORDER else 0.0)]
    for size in (0.0, normal):
        other = [
            np.where(np.abs(a) < normal, np.copysign(size, a), a) for a in map(_wide, operands)
        ]
        distances.append(np.abs(_computed(meaning, other) - expected.exact))
    return replace(expected, absolute=np.fmax.reduce(distances))


@named_checks(
    {f"{name}_of_nan[{kind}]": (name, kind) for name in _ORDER for kind in _WITH_DENORMALS}
)
def of_nan(device: OperatorDevice, name: str, kind: str) -> None:
    """Return NaN where an operand is NaN, and tell the zeros apart, as IEEE 754's operation."""
    values = np.array([0.0, -0.0, 1.0, np.inf, np.nan]).astype(dtype(kind))
    first, second = np.meshgrid(values, values, indexing="ij")
    verify(device, f"stablehlo.{name}", kind, operation(name, [first, second]))


_WITH_CONSTANTS = ("s2", "u2", "s4", "u4", "s32", "pred")


@named_checks(
    {
        f"{name}_with_constant[{kind}]": (name, kind)
        for name, operator in BINARY.items()
        for kind in operator.kinds
        if kind in _WITH_CONSTANTS
    }
)
def with_constant(device: OperatorDevice, name: str, kind: str) -> None:
    """Compute with an operand that the compiler knows, as the first and as the second one."""
    values = specials(kind)
    lines, names, expected = list[str](), list[str](), list[Expected]()
    text = tensor(values.shape, of(values))
    for number, value in enumerate(values):
        same = np.full_like(values, value)
        data = str(bool(value)).lower() if kind == "pred" else f'"0x{same.tobytes().hex().upper()}"'
        lines.append(f"%c{number} = stablehlo.constant dense<{data}> : {text}")
        for side, operands in (("a", [same, values]), ("b", [values, same])):
            expected.append(_expected(name, operands))
            names.append(f"%{side}{number}")
            order = f"%c{number}, %0" if side == "a" else f"%0, %c{number}"
            types = f"({text}, {text}) -> {expected[-1].text}"
            lines.append(f'{names[-1]} = "stablehlo.{name}"({order}) : {types}')
    program = ProgramLines("constants", "\n".join(lines), names, [values], expected)
    verify(device, f"stablehlo.{name}", kind, program)


def operation(name: str, operands: Sequence[Array], case: str = "") -> Operation:
    """Return an operation with what it has to return."""
    return Operation(f"stablehlo.{name}", operands, [_expected(name, operands)], case=case)


def _expected(name: str, operands: Sequence[Array]) -> Expected:
    operator, kind = OPERATORS[name], of(operands[0]).name
    if kind == "pred":
        assert operator.boolean
        return Expected(kind, operator.boolean(*operands))
    if kind in INTEGERS:
        assert operator.integer
        return _of_integers(kind, operator.integer, operands, wraps=name != "power")
    if kind in COMPLEX:
        assert operator.complex
        bound = ulps("complex power" if name == "power" else "complex", kind)
        exact = _computed(operator.complex, [_wide(each) for each in operands])
        part = of(np.zeros(0, PARTS[dtype(kind)])).name
        return Expected(part if name == "abs" else kind, exact, bound, zero_sign=False)
    assert operator.real
    wide = [each if kind == "f64" and name in _ROUNDED else _wide(each) for each in operands]
    exact = _computed(operator.real, wide)
    others = [_computed(operator.real, [_flushed(a, kind) for a in wide])]
    if kind == "f64" and name in _ROUNDED:
        return Expected(kind, exact, 0.0, others=others)  # NumPy's result is rounded already
    return Expected(kind, exact, ulps(name, kind), others=others)


def _computed(meaning: Meaning, operands: Sequence[Array]) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(meaning(*operands))


def _wide(values: Array) -> Array:
    """Return values in a type with more bits, where NumPy has one on this machine."""
    if values.dtype.kind == "c":
        return values.astype(np.clongdouble if values.dtype == np.complex128 else np.complex128)
    return values.astype(np.longdouble if values.dtype == np.float64 else np.float64)


def _flushed(values: Array, kind: str) -> Array:
    """Return values with denormal numbers taken as zeros, as devices do that lack them."""
    normal = float(ml_dtypes.finfo(dtype(kind)).smallest_normal)
    return np.where(np.abs(values) < normal, np.copysign(0, values), values)


def _of_integers(
    kind: str, meaning: Meaning, operands: Sequence[Array], *, wraps: bool
) -> Expected:
    """Return integers; StableHLO leaves open what overflows, but random numbers need wrapping.

    So unsigned results have to wrap around where ``wraps``, and signed ones need not.
    """
    given = [np.vectorize(int, otypes=[object])(each) if each.size else each for each in operands]
    shape, limits = operands[0].shape, ml_dtypes.iinfo(dtype(kind))
    low, high = int(limits.min), int(limits.max)
    flat = [meaning(*row) for row in zip(*(each.reshape(-1) for each in given), strict=True)]
    open_ = low < 0 or not wraps
    ignored = [v is None or (open_ and not low <= v <= high) for v in flat]
    kept = [0 if v is None else (int(v) - low) % (high - low + 1) + low for v in flat]
    wide = np.array(kept, np.uint64 if low == 0 else np.int64)
    return Expected(
        kind,
        wide.astype(dtype(kind)).reshape(shape),
        ignored=np.array(ignored, bool).reshape(shape),
    )
