"""Control flow, random bits, dynamic shapes, and the operators of linear algebra."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import ml_dtypes
import numpy as np

from harness.conformance.operators.accuracy import ulps
from harness.conformance.operators.closeness import Expected
from harness.conformance.operators.devices import OperatorDevice
from harness.conformance.operators.element_types import COMPLEX, PARTS, TYPES, Array, dtype
from harness.conformance.operators.evaluation import Operation, ProgramLines, run, verify
from harness.conformance.operators.movement_checks import exactly
from harness.conformance.operators.operand_values import numbers
from harness.conformance.operators.reduction_checks import near, wide
from harness.conformance.operators.regions import compared
from harness.conformance.plugin_check import check, checks, expect, named_checks

_BRANCHES = 3


@checks({f"{kind},{index}": (kind, index) for kind in ("f32", "s32") for index in range(-1, 5)})
def case(device: OperatorDevice, kind: str, index: int) -> None:
    """Take the branch of an index, and the last one for an index without a branch."""
    x = numbers(kind, (7, 13), 1)
    text = Expected(kind, x).text
    names = ("negate", "abs", "sign")
    regions = [
        f'%y = "stablehlo.{name}"(%1) : ({text}) -> {text}\n"stablehlo.return"(%y) : ({text}) -> ()'
        for name in names
    ]
    chosen = index if 0 <= index < _BRANCHES else _BRANCHES - 1
    result = (np.negative, np.abs, np.sign)[chosen](x)
    lines = (
        f'%r = "stablehlo.case"(%0) ({", ".join(f"{{{each}}}" for each in regions)}) '
        f": (tensor<i32>) -> {text}"
    )
    given = [np.asarray(index, np.int32), x]
    verify(
        device,
        "stablehlo.case",
        kind,
        ProgramLines("case", lines, ["%r"], given, [exactly(result)]),
    )


@checks({f"{kind},{value}": (kind, value) for kind in ("f32", "s32") for value in (True, False)})
def if_(device: OperatorDevice, kind: str, value: bool) -> None:  # noqa: FBT001
    """Take one of two branches."""
    x = numbers(kind, (7, 13), 1)
    text = Expected(kind, x).text
    lines = f"""%r = "stablehlo.if"(%0) ({{
  %y = "stablehlo.negate"(%1) : ({text}) -> {text}
  "stablehlo.return"(%y) : ({text}) -> ()
}}, {{
  "stablehlo.return"(%1) : ({text}) -> ()
}}) : (tensor<i1>) -> {text}"""
    result = -x if value else x
    made = ProgramLines("if", lines, ["%r"], [np.asarray(value), x], [exactly(result)])
    verify(device, "stablehlo.if", kind, made)


@checks({kind: (kind,) for kind in ("f32", "s32", "u32")})
def while_(device: OperatorDevice, kind: str) -> None:
    """Repeat a body with a counter and a sum, often, once and never."""
    x = numbers(kind, (7, 13), 1)
    text = Expected(kind, x).text
    lines = f"""%one = "stablehlo.constant"() {{value = dense<1> : tensor<i32>}} : () -> tensor<i32>
%r:2 = "stablehlo.while"(%0, %2) ({{
  ^bb0(%i: tensor<i32>, %s: {text}):
    {compared("%c", ("%i", "%1"), "LT", "s32")}
    "stablehlo.return"(%c) : (tensor<i1>) -> ()
}}, {{
  ^bb0(%i: tensor<i32>, %s: {text}):
    %n = "stablehlo.add"(%i, %one) : (tensor<i32>, tensor<i32>) -> tensor<i32>
    %t = "stablehlo.add"(%s, %2) : ({text}, {text}) -> {text}
    "stablehlo.return"(%n, %t) : (tensor<i32>, {text}) -> ()
}}) : (tensor<i32>, {text}) -> (tensor<i32>, {text})"""
    for count in (9, 1, 0):
        given = [np.asarray(0, np.int32), np.asarray(count, np.int32), x]
        exact = wide(x) * (count + 1)
        expected = [exactly(given[1]), near(kind, exact, np.abs(exact), count)]
        made = ProgramLines("while", lines, ["%r#0", "%r#1"], given, expected)
        verify(device, "stablehlo.while", kind, made)


@checks({kind: (kind,) for kind in ("f32", "s32", "bf16", "u8")})
def map_(device: OperatorDevice, kind: str) -> None:
    """Apply a computation to the elements of two arrays."""
    a, b = numbers(kind, (7, 13), 1), numbers(kind, (7, 13), 2)
    text = f"tensor<{TYPES[kind].text}>"
    region = f"""
      ^bb0(%x: {text}, %y: {text}):
        %z = "stablehlo.maximum"(%x, %y) : ({text}, {text}) -> {text}
        "stablehlo.return"(%z) : ({text}) -> ()
      """
    result = np.maximum(a, b)
    made = Operation(
        "stablehlo.map", [a, b], [exactly(result)], "dimensions = array<i64: 0, 1>", [region]
    )
    verify(device, "stablehlo.map", kind, made)


def _bits(algorithm: str, state: Array, kind: str, shape: tuple[int, ...]) -> Operation:
    return Operation(
        "stablehlo.rng_bit_generator",
        [state],
        [Expected("u64", state), Expected(kind, np.zeros(shape, dtype(kind)))],
        f"rng_algorithm = #stablehlo<rng_algorithm {algorithm}>",
    )


@checks(
    {
        f"{name},{kind}": (name, kind)
        for name in ("DEFAULT", "THREE_FRY", "PHILOX")
        for kind in ("u8", "u16", "u32", "u64", "s32")
    }
)
def random_bits(device: OperatorDevice, algorithm: str, kind: str) -> None:
    """Return the same bits for the same state, others for another, and a new state."""
    states = [np.array(each, np.uint64) for each in ([1, 2], [1, 2], [1, 3])]
    label, needed = (
        f"stablehlo.rng_bit_generator of {kind}",
        algorithm == "THREE_FRY" and kind == "u32",
    )
    made = [_bits(algorithm, state, kind, (129, 7)) for state in states]
    results = run(device, label, made, needed=needed)
    first, again, other = results[1::2]
    expect(results[0].tolist() != [1, 2], "the state after it is the one before")
    expect((first == again).all(), "the same state gives other bits")
    expect((first != other).mean() > 0.5, "another state gives the same bits")
    ones = np.unpackbits(first.view(np.uint8)).mean()
    expect(0.45 < ones < 0.55, f"{ones:.0%} of the bits are ones")


@check
def random_bits_of_the_specification(device: OperatorDevice) -> None:
    """Return the bits that the specification shows for Threefry."""
    results = [
        [9236835810183407956, 16087790271692313299],
        [18212823393184779219, 2658481902456610144],
    ]
    state = np.array([1, 2], np.uint64)
    made = Operation(
        "stablehlo.rng_bit_generator",
        [state],
        [exactly(np.array([1, 6], np.uint64)), exactly(np.array(results, np.uint64))],
        "rng_algorithm = #stablehlo<rng_algorithm THREE_FRY>",
    )
    verify(device, "stablehlo.rng_bit_generator", "u64", made)


@checks(
    {
        f"{name},{kind},{size}": (name, kind, size)
        for name in ("FFT", "IFFT", "RFFT", "IRFFT")
        for kind in COMPLEX
        for size in (1, 8, 15, 129)
    }
)
def fft(device: OperatorDevice, name: str, kind: str, size: int) -> None:
    """Transform rows, real ones or complex ones."""
    part = next(each for each in TYPES if TYPES[each].dtype == PARTS[dtype(kind)])
    half = size // 2 + 1
    x = numbers(part if name == "RFFT" else kind, (3, half if name == "IRFFT" else size), 1)
    if name == "IRFFT":  # ends whose imaginary part means something else to each library
        x[:, 0] = x[:, 0].real
        x[:, -1] = x[:, -1].real if size % 2 == 0 else x[:, -1]
    values = x.astype(np.complex128) if name != "RFFT" else x.astype(np.float64)
    transforms: dict[str, Callable[[Array], Array]] = {
        "FFT": np.fft.fft,
        "IFFT": np.fft.ifft,
        "RFFT": np.fft.rfft,
        "IRFFT": lambda rows: np.fft.irfft(rows, size),
    }
    exact = transforms[name](values)
    slack = 16 * float(ml_dtypes.finfo(dtype(part)).eps) * np.abs(values).sum()
    result = part if name == "IRFFT" else kind
    expected = Expected(result, exact, 1.0, slack, zero_sign=False)
    attributes = f"fft_type = #stablehlo<fft_type {name}>, fft_length = array<i64: {size}>"
    verify(device, "stablehlo.fft", kind, Operation("stablehlo.fft", [x], [expected], attributes))


_MATRICES = ("f32", "f64", *COMPLEX)


@checks(
    {
        f"{kind},{'lower' if lower else 'upper'}": (kind, lower)
        for kind in _MATRICES
        for lower in (True, False)
    }
)
def cholesky(device: OperatorDevice, kind: str, lower: bool) -> None:  # noqa: FBT001
    """Decompose two matrices."""
    x = wide(numbers(kind, (2, 7, 7), 1))
    a = (x @ np.conj(np.swapaxes(x, 1, 2)) + 7 * np.eye(7)).astype(dtype(kind))
    exact = np.linalg.cholesky(wide(a))
    exact = exact if lower else np.conj(np.swapaxes(exact, 1, 2))
    other = np.triu(np.ones((7, 7)), 1) if lower else np.tril(np.ones((7, 7)), -1)
    part = PARTS.get(dtype(kind), dtype(kind))
    slack = 64 * float(ml_dtypes.finfo(part).eps) * np.abs(exact).max()
    expected = Expected(
        kind, exact, 1.0, slack, ignored=np.broadcast_to(other == 1, a.shape), zero_sign=False
    )
    made = Operation("stablehlo.cholesky", [a], [expected], f"lower = {str(lower).lower()}")
    verify(device, "stablehlo.cholesky", kind, made)


class Equation(NamedTuple):
    """What of a matrix is used, and on which side of the unknown it is."""

    left: bool
    lower: bool
    unit: bool
    transpose: str

    @property
    def name(self) -> str:
        """The end of the id of its check."""
        sides = "left" if self.left else "right", "lower" if self.lower else "upper"
        return ",".join([*sides, *(["unit"] if self.unit else []), self.transpose.lower()])

    def of(self, triangle: Array) -> Array:
        """Return the matrix of the equation."""
        return {"TRANSPOSE": triangle.T, "ADJOINT": triangle.conj().T}.get(self.transpose, triangle)


_FLAGS = (True, False)
_TRANSPOSES = ("NO_TRANSPOSE", "TRANSPOSE", "ADJOINT")
_EQUATIONS = [Equation(*each) for each in itertools.product(_FLAGS, _FLAGS, _FLAGS, _TRANSPOSES)]


@named_checks(
    {
        f"triangular_solve[{kind},{each.name}]": (kind, each)
        for kind in _MATRICES
        for each in _EQUATIONS
        if kind == "f32" or (not each.unit and each.lower)
    }
)
def triangular_solve(device: OperatorDevice, kind: str, given: Equation) -> None:
    """Solve equations with a triangle of a matrix."""
    a = (numbers(kind, (7, 7), 1) / 4 + 3 * np.eye(7)).astype(dtype(kind))
    b = numbers(kind, (7, 5) if given.left else (5, 7), 2)
    if given.unit:
        np.fill_diagonal(a, 1)
    matrix = given.of(wide(np.tril(a) if given.lower else np.triu(a)))
    right = wide(b) if given.left else wide(b).T
    exact = np.linalg.solve(matrix if given.left else matrix.T, right)
    exact = exact if given.left else exact.T
    part = PARTS.get(dtype(kind), dtype(kind))
    slack = 256 * float(ml_dtypes.finfo(part).eps) * np.abs(exact).max()
    flags = ("left_side", given.left), ("lower", given.lower), ("unit_diagonal", given.unit)
    made = Operation(
        "stablehlo.triangular_solve",
        [a, b],
        [Expected(kind, exact, 1.0, slack, zero_sign=False)],
        ", ".join(f"{name} = {str(value).lower()}" for name, value in flags)
        + f", transpose_a = #stablehlo<transpose {given.transpose}>",
    )
    verify(device, "stablehlo.triangular_solve", kind, made)


@checks(
    {f"{kind},{axis}": (kind, axis) for kind in ("f32", "f64", "bf16", "f16") for axis in (1, 3)}
)
def batch_norm_inference(device: OperatorDevice, kind: str, axis: int) -> None:
    """Normalize with a given mean and variance."""
    x = numbers(kind, (2, 3, 5, 4), 1)
    scale, offset, mean = (numbers(kind, (x.shape[axis],), seed) for seed in (2, 3, 4))
    variance = np.abs(numbers(kind, mean.shape, 5)) + np.ones(1, x.dtype)
    shape = [-1 if each == axis else 1 for each in range(4)]
    s, o, m, v = (wide(each).reshape(shape) for each in (scale, offset, mean, variance))
    exact = (wide(x) - m) / np.sqrt(v + 0.25) * s + o
    expected = near(kind, exact, np.abs(s) * (np.abs(wide(x)) + np.abs(m)) + np.abs(o), 8)
    attributes = f"epsilon = 0.25 : f32, feature_index = {axis} : i64"
    operands = [x, scale, offset, mean, variance]
    made = Operation("stablehlo.batch_norm_inference", operands, [expected], attributes)
    verify(device, "stablehlo.batch_norm_inference", kind, made)


@checks({kind: (kind,) for kind in ("f32", "f64")})
def batch_norm_training(device: OperatorDevice, kind: str) -> None:
    """Normalize with the mean and the variance of the batch, and return both."""
    x, scale, offset = numbers(kind, (4, 5, 3), 1), numbers(kind, (3,), 2), numbers(kind, (3,), 3)
    mean, variance = wide(x).mean((0, 1)), wide(x).var((0, 1))
    exact = (wide(x) - mean) / np.sqrt(variance + 0.25) * wide(scale) + wide(offset)
    made = Operation(
        "stablehlo.batch_norm_training",
        [x, scale, offset],
        [near(kind, each, np.full(each.shape, 4.0), 20) for each in (exact, mean, variance)],
        "epsilon = 0.25 : f32, feature_index = 2 : i64",
    )
    verify(device, "stablehlo.batch_norm_training", kind, made)


SPECIAL: dict[str, tuple[Callable[[float], float], float, float]] = {
    "erf": (math.erf, -3, 3),
    "erfc": (math.erfc, -3, 3),
    "lgamma": (math.lgamma, 0.1, 30),
    "asin": (math.asin, -1, 1),
    "acos": (math.acos, -0.9, 0.9),
    "atan": (math.atan, -9, 9),
    "asinh": (math.asinh, -9, 9),
    "acosh": (math.acosh, 1.5, 9),
    "atanh": (math.atanh, -0.9, 0.9),
    "sinh": (math.sinh, -5, 5),
    "cosh": (math.cosh, -5, 5),
}


@named_checks(
    {
        f"chlo_{name}[{kind}]": (name, kind)
        for name in SPECIAL
        for kind in ("f32", "f64", "bf16", "f16")
    }
)
def chlo(device: OperatorDevice, name: str, kind: str) -> None:
    """Compute a function that frameworks leave to the plugin, as an operator of CHLO."""
    meaning, low, high = SPECIAL[name]
    x = np.random.default_rng(1).uniform(low, high, (7, 13)).astype(dtype(kind))
    exact = np.vectorize(meaning)(x.astype(np.float64))
    # Near its zeros it is a sum whose terms cancel.
    slack = 16 * float(ml_dtypes.finfo(x.dtype).eps) if name == "lgamma" else 0.0
    made = Operation(f"chlo.{name}", [x], [Expected(kind, exact, ulps(name, kind), slack)])
    verify(device, f"chlo.{name}", kind, made)


@checks({kind: (kind,) for kind in ("f32", "s32", "bf16")})
def chlo_top_k(device: OperatorDevice, kind: str) -> None:
    """Return the largest elements of each row and their places, the first of equal ones first."""
    x = numbers(kind, (7, 13), 1)
    places = np.argsort(-wide(x), axis=1, kind="stable")[:, :5]
    expected = [exactly(np.take_along_axis(x, places, 1)), exactly(places.astype(np.int32))]
    verify(device, "chlo.top_k", kind, Operation("chlo.top_k", [x], expected, "k = 5 : i64"))


def _dynamic(
    name: str, given: list[Array], result: Array, sizes: list[list[int]], more: str = ""
) -> ProgramLines:
    """Return a program whose operator takes its shape as a constant operand."""
    constants = [
        f"%c{n} = stablehlo.constant dense<{values}> : tensor<{len(values)}xi32>"
        for n, values in enumerate(sizes)
    ]
    types = [Expected(each_kind, each).text for each_kind, each in (_named(g) for g in given)]
    operands = ", ".join(
        [*(f"%{n}" for n in range(len(given))), *(f"%c{n}" for n in range(len(sizes)))]
    )
    all_types = ", ".join([*types, *(f"tensor<{len(values)}xi32>" for values in sizes)])
    text = Expected(*_named(result)).text
    attributes = f" {{{more}}}" if more else ""
    line = f'%r = "stablehlo.{name}"({operands}){attributes} : ({all_types}) -> {text}'
    return ProgramLines(name, "\n".join([*constants, line]), ["%r"], given, [exactly(result)])


def _named(array: Array) -> tuple[str, Array]:
    return next(name for name, each in TYPES.items() if each.dtype == array.dtype), array


@checks(
    {
        f"{name},{kind}": (name, kind)
        for name in ("broadcast", "reshape", "iota", "pad", "slice")
        for kind in ("f32", "s32")
    }
)
def dynamic(device: OperatorDevice, name: str, kind: str) -> None:
    """Take the shape of the result as an operand, which is constant."""
    x = numbers(kind, (4, 6), 1)
    value = np.asarray(x[0, 0])
    made = {
        "broadcast": lambda: _dynamic(
            "dynamic_broadcast_in_dim",
            [x],
            np.broadcast_to(x, (3, 4, 6)).copy(),
            [[3, 4, 6]],
            "broadcast_dimensions = array<i64: 1, 2>",
        ),
        "reshape": lambda: _dynamic("dynamic_reshape", [x], x.reshape(8, 3), [[8, 3]]),
        "iota": lambda: _dynamic(
            "dynamic_iota",
            [],
            np.broadcast_to(np.arange(5), (3, 5)).astype(x.dtype),
            [[3, 5]],
            "iota_dimension = 1 : i64",
        ),
        "pad": lambda: _dynamic(
            "dynamic_pad",
            [x, value],
            np.pad(x, ((1, 0), (0, 2)), constant_values=value),
            [[1, 0], [0, 2], [0, 0]],
        ),
        "slice": lambda: _dynamic(
            "real_dynamic_slice", [x], x[1:3, 0:5:2].copy(), [[1, 0], [3, 5], [1, 2]]
        ),
    }[name]()
    verify(device, f"stablehlo.{made.name}", kind, made)


@checks({"f32": ("f32",), "s32": ("s32",)})
def dimension_size(device: OperatorDevice, kind: str) -> None:
    """Make a vector shorter at run time; a sum and its size take only what is left."""
    x, size = numbers(kind, (13,), 1), np.asarray(5, np.int32)
    text, bounded = TYPES[kind].text, f"tensor<?x{TYPES[kind].text}, #stablehlo.bounds<13>>"
    lines = f"""%s = "stablehlo.set_dimension_size"(%0, %1) {{dimension = 0 : i64}} \
: (tensor<13x{text}>, tensor<i32>) -> {bounded}
%n = "stablehlo.get_dimension_size"(%s) {{dimension = 0 : i64}} : ({bounded}) -> tensor<i32>
%z = stablehlo.constant dense<0{".0" if kind == "f32" else ""}> : tensor<{text}>
%t = "stablehlo.reduce"(%s, %z) ({{
  ^bb0(%a: tensor<{text}>, %b: tensor<{text}>):
    %c = "stablehlo.add"(%a, %b) : (tensor<{text}>, tensor<{text}>) -> tensor<{text}>
    "stablehlo.return"(%c) : (tensor<{text}>) -> ()
}}) {{dimensions = array<i64: 0>}} : ({bounded}, tensor<{text}>) -> tensor<{text}>"""
    exact = wide(x)[:5].sum()
    expected = [near(kind, np.asarray(exact), np.abs(wide(x)).sum(), 5), exactly(size)]
    made = ProgramLines("set_dimension_size", lines, ["%t", "%n"], [x, size], expected)
    verify(device, "stablehlo.set_dimension_size", kind, made)
