"""Reductions: of whole dimensions, of windows, and sums of products."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from harness.conformance.operators.closeness import Expected
from harness.conformance.operators.devices import OperatorDevice
from harness.conformance.operators.element_types import (
    COMPLEX,
    FLOATS,
    INTEGERS,
    PARTS,
    Array,
    dtype,
    of,
    tensor,
)
from harness.conformance.operators.evaluation import Operation, verify
from harness.conformance.operators.movement_checks import exactly, integers, padded
from harness.conformance.operators.operand_values import SHAPES, numbers
from harness.conformance.operators.regions import compared, folding
from harness.conformance.plugin_check import checks, named_checks

NUMBERS = (*(kind for kind in INTEGERS if kind[1:] not in ("2", "4")), "bf16", "f16", "f32", "f64")
_FOLDS: Mapping[str, Any] = {
    "add": np.add,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def wide(values: Array) -> Array:
    """Return values in a type in which a sum of many is exact enough, or wraps around."""
    if values.dtype.kind == "c":
        return values.astype(np.complex128)
    name = of(values).name
    if name in FLOATS:
        return values.astype(np.float64)
    return values if name == "pred" else values.astype(np.uint64 if name == "u64" else np.int64)


def near(kind: str, exact: Array, sizes: Array, terms: int) -> Expected:
    """Expect a sum: each addition may round, in the type of the result, in any order.

    ``sizes`` are the sums of the absolute values, which bound what rounding can do.
    """
    if kind in FLOATS or kind in COMPLEX:
        part = PARTS[dtype(kind)] if kind in COMPLEX else dtype(kind)
        rounding = float(ml_dtypes.finfo(part).eps) * (2 if kind in COMPLEX else 1)
        slack = (terms + 2) * rounding * sizes
        return Expected(kind, exact, 1.0, slack, zero_sign=False)
    return exactly(exact.astype(dtype(kind)))


def _reduce(name: str, kind: str, x: Array, init: Array, axes: tuple[int, ...]) -> Operation:
    fold = _FOLDS[name]
    if kind == "pred":
        fold = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}[name]
    exact = fold.reduce(wide(x), axis=axes, initial=wide(init))
    terms = int(np.prod([x.shape[axis] for axis in axes], dtype=int))
    sizes = np.abs(wide(x)).sum(axes) if name == "add" else np.abs(exact).astype(float)
    expected = near(kind, np.asarray(exact), sizes, terms)
    return Operation(
        "stablehlo.reduce",
        [x, init],
        [expected],
        f"dimensions = {integers(axes)}",
        [folding(name, kind)],
        f"{name} over {list(axes)}",
    )


def _identity(name: str, kind: str) -> Array:
    """Return the initial value that changes nothing: a plugin may use it as often as it likes."""
    own = dtype(kind)
    if name in ("maximum", "minimum"):
        if kind in FLOATS:
            return np.asarray(-np.inf if name == "maximum" else np.inf).astype(own)
        limits = ml_dtypes.iinfo(own)
        return np.asarray(limits.min if name == "maximum" else limits.max, own)
    if name == "and":
        return np.asarray(True) if kind == "pred" else ~np.zeros((), own)
    return np.asarray(name == "multiply").astype(own)


def _of_reduction(name: str) -> Sequence[str]:
    if name in ("and", "or", "xor"):
        return ("pred", *(kind for kind in NUMBERS if kind in INTEGERS))
    return (*NUMBERS, *(COMPLEX if name in ("add", "multiply") else ()))


@named_checks(
    {f"reduce_{name}[{kind}]": (name, kind) for name in _FOLDS for kind in _of_reduction(name)}
)
def reduce(device: OperatorDevice, name: str, kind: str) -> None:
    """Reduce rows, columns and everything, from an initial value."""
    x = numbers(kind, (7, 13), 1)
    if name == "multiply":  # numbers whose product is neither huge nor nothing
        x = np.where(numbers("pred", x.shape, 2), np.ones(1, x.dtype), x)
    init = _identity(name, kind)
    made = [_reduce(name, kind, x, init, axes) for axes in ((1,), (0,), (0, 1))]
    verify(device, "stablehlo.reduce", kind, *made)


@named_checks(
    {
        f"reduce_{name}[{kind},{shape}]": (name, kind, shape)
        for name in ("add", "maximum")
        for kind in ("f32", "s32")
        for shape in SHAPES
    }
)
def reduce_shape(device: OperatorDevice, name: str, kind: str, shape: str) -> None:
    """Reduce the last dimension and all dimensions of a class of shapes."""
    x = numbers(kind, SHAPES[shape], 1)
    init, rank = _identity(name, kind), x.ndim
    axes = {(), (rank - 1,) if rank else (), tuple(range(rank))}
    made = [_reduce(name, kind, x, init, each) for each in sorted(axes) if each or not rank]
    verify(device, "stablehlo.reduce", kind, *made)


@checks(
    {
        f"{name},{kind}": (name, kind)
        for name in ("add", "maximum", "minimum")
        for kind in ("bf16", "f32", "f64")
    }
)
def reduce_of_nan(device: OperatorDevice, name: str, kind: str) -> None:
    """Return NaN for a row that has one, and infinity for one that has that."""
    x = np.abs(numbers(kind, (4, 9), 4))
    x[1, 3], x[2, 8], x[3, 0] = np.nan, np.inf, -np.inf
    init = _identity(name, kind)
    verify(device, "stablehlo.reduce", kind, _reduce(name, kind, x, init, (1,)))


@checks({kind: (kind,) for kind in ("s32", "f32", "bf16")})
def reduce_of_two_operands(device: OperatorDevice, kind: str) -> None:
    """Find the largest element of each row and its place, in one reduction of two results."""
    x = numbers(kind, (7, 13), 5)
    places = np.broadcast_to(np.arange(13, dtype=np.int32), x.shape).copy()
    text, place = tensor((), of(x)), "tensor<i32>"
    low = np.asarray(-100).astype(x.dtype)
    region = f"""
      ^bb0(%x: {text}, %i: tensor<i32>, %y: {text}, %j: tensor<i32>):
        {compared("%gt", ("%x", "%y"), "GT", kind)}
        {compared("%eq", ("%x", "%y"), "EQ", kind)}
        {compared("%lt", ("%i", "%j"), "LT", "s32")}
        %both = "stablehlo.and"(%eq, %lt) : (tensor<i1>, tensor<i1>) -> tensor<i1>
        %take = "stablehlo.or"(%gt, %both) : (tensor<i1>, tensor<i1>) -> tensor<i1>
        %a = "stablehlo.select"(%take, %x, %y) : (tensor<i1>, {text}, {text}) -> {text}
        %b = "stablehlo.select"(%take, %i, %j) : (tensor<i1>, {place}, {place}) -> {place}
        "stablehlo.return"(%a, %b) : ({text}, {place}) -> ()
      """
    order = wide(x)
    best = np.argmax(order, 1).astype(np.int32)
    largest = np.take_along_axis(x, best[:, None], 1)[:, 0]
    made = Operation(
        "stablehlo.reduce",
        [x, places, low, np.asarray(99, np.int32)],
        [exactly(largest), exactly(best)],
        "dimensions = array<i64: 1>",
        [region],
    )
    verify(device, "stablehlo.reduce", kind, made)


@dataclass(frozen=True)
class Window:
    """Window of two dimensions and how it moves."""

    size: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    padding: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))
    base: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)

    @property
    def attributes(self) -> str:
        """The attributes of reduce_window and select_and_scatter."""
        return (
            f"window_dimensions = {integers(self.size)}, "
            f"window_strides = {integers(self.strides)}, "
            f"padding = dense<{[list(each) for each in self.padding]}> : tensor<2x2xi64>"
        )

    def views(self, x: Array, value: Any) -> Iterator[tuple[tuple[int, int], Array]]:
        """Yield each place of the window with the elements that it has there, for all windows."""
        low, high = zip(*self.padding, strict=True)
        whole = padded(x, value, low, high, [n - 1 for n in self.base])
        counts = [
            max((extent - (size - 1) * step - 1) // stride + 1, 0) if extent else 0
            for extent, size, step, stride in zip(
                whole.shape, self.size, self.dilation, self.strides, strict=True
            )
        ]
        for place in itertools.product(*map(range, self.size)):
            parts = [
                slice(at * step, at * step + (count - 1) * stride + 1, stride)
                for at, step, count, stride in zip(
                    place, self.dilation, counts, self.strides, strict=True
                )
            ]
            yield (place[0], place[1]), whole[tuple(parts)]


WINDOWS = {
    "plain": Window((2, 3)),
    "strides": Window((2, 3), (2, 3)),
    "padding": Window((3, 3), padding=((1, 1), (2, 0))),
    "base dilation": Window((2, 2), base=(2, 3)),
    "window dilation": Window((2, 3), dilation=(3, 2)),
    "all of it": Window((2, 3), (2, 1), ((1, 2), (0, 3)), (2, 1), (1, 2)),
    "negative padding": Window((2, 2), padding=((-1, 0), (0, -2))),
}


@named_checks(
    {
        f"reduce_window_{name}[{kind},{window}]": (name, kind, window)
        for name in ("add", "maximum", "minimum")
        for kind, windows in (
            ("f32", WINDOWS),
            ("s32", WINDOWS),
            ("bf16", ["all of it"]),
            ("f64", ["all of it"]),
            ("f16", ["all of it"]),
            ("u8", ["all of it"]),
        )
        for window in windows
    }
)
def reduce_window(device: OperatorDevice, name: str, kind: str, window: str) -> None:
    """Reduce each window of an array."""
    moved, x = WINDOWS[window], numbers(kind, (7, 13), 6)
    start = {"add": 0, "maximum": -30, "minimum": 30}[name]
    init = np.asarray(max(start, 0) if kind.startswith("u") else start).astype(x.dtype)
    exact: Any = wide(init)
    sizes: Any = 0.0
    for _, part in moved.views(wide(x), wide(init)):
        exact, sizes = _FOLDS[name](exact, part), sizes + np.abs(part)
    sizes = sizes if name == "add" else 0.0
    made = Operation(
        "stablehlo.reduce_window",
        [x, init],
        [near(kind, exact, sizes, 9)],
        f"{moved.attributes}, base_dilations = {integers(moved.base)}, "
        f"window_dilations = {integers(moved.dilation)}",
        [folding(name, kind)],
    )
    verify(device, "stablehlo.reduce_window", kind, made)


@checks(
    {
        f"{kind},{name}": (kind, name)
        for kind in ("f32", "s32", "bf16")
        for name in ("strides", "plain", "padding")
    }
)
def select_and_scatter(device: OperatorDevice, kind: str, name: str) -> None:
    """Add each element of a smaller array where the largest element of its window is."""
    moved = WINDOWS[name]
    x = np.random.default_rng(7).permutation(91).reshape(7, 13).astype(dtype(kind))
    lowest = -1.0
    views = list(moved.views(wide(x), lowest))
    best = np.argmax([part for _, part in views], axis=0)
    source = numbers(kind, best.shape, 8)
    result = np.zeros(x.shape, np.float64)
    for row, column in itertools.product(*map(range, best.shape)):
        place = views[best[row, column]][0]
        at = [
            index * stride + inside - before
            for index, stride, inside, (before, _) in zip(
                (row, column), moved.strides, place, moved.padding, strict=True
            )
        ]
        result[tuple(at)] += float(source[row, column])
    text = tensor((), of(x))
    select = f"""
      ^bb0(%x: {text}, %y: {text}):
        {compared("%z", ("%x", "%y"), "GE", kind)}
        "stablehlo.return"(%z) : (tensor<i1>) -> ()
      """
    made = Operation(
        "stablehlo.select_and_scatter",
        [x, source, np.asarray(0).astype(x.dtype)],
        [near(kind, result, np.full(x.shape, 20.0), 9)],
        moved.attributes,
        [select, folding("add", kind)],
    )
    verify(device, "stablehlo.select_and_scatter", kind, made)


_HIGHEST = "precision_config = [#stablehlo<precision HIGHEST>, #stablehlo<precision HIGHEST>]"


@dataclass(frozen=True)
class Dot:
    """Shapes of two operands, the dimensions of the product, and the same as NumPy's einsum."""

    left: tuple[int, ...]
    right: tuple[int, ...]
    batching: tuple[Sequence[int], Sequence[int]]
    contracting: tuple[Sequence[int], Sequence[int]]
    sum: str


DOTS = {
    "matrices": Dot((7, 13), (13, 5), ([], []), ([1], [0]), "ij,jk->ik"),
    "transposed": Dot((13, 7), (5, 13), ([], []), ([0], [1]), "ji,kj->ik"),
    "vectors": Dot((13,), (13,), ([], []), ([0], [0]), "i,i->"),
    "matrix and vector": Dot((7, 13), (13,), ([], []), ([1], [0]), "ij,j->i"),
    "outer": Dot((7,), (5,), ([], []), ([], []), "i,j->ij"),
    "batches": Dot((3, 7, 13), (3, 13, 5), ([0], [0]), ([2], [1]), "bij,bjk->bik"),
    "batches inside": Dot((7, 3, 4), (4, 5, 3), ([1], [2]), ([2], [0]), "ibj,jkb->bik"),
    "two contracted": Dot((3, 4, 5), (5, 2, 4), ([], []), ([1, 2], [2, 0]), "ijk,klj->il"),
    "nothing contracted": Dot((3, 0), (0, 4), ([], []), ([1], [0]), "ij,jk->ik"),
    "no rows": Dot((0, 3), (3, 4), ([], []), ([1], [0]), "ij,jk->ik"),
    "large": Dot((129, 257), (257, 65), ([], []), ([1], [0]), "ij,jk->ik"),
    "square": Dot((6, 6), (6, 6), ([], []), ([1], [0]), "ij,jk->ik"),
}


@named_checks(
    {f"dot_general[f32,{name}]": ("f32", name) for name in DOTS}
    | {
        f"dot_general[{kind},{name}]": (kind, name)
        for kind in (*NUMBERS, *COMPLEX, "f8E4M3FN", "f8E5M2")
        if kind != "f32"
        for name in ("matrices", "batches inside")
    }
)
def dot_general(device: OperatorDevice, kind: str, name: str) -> None:
    """Sum products of two arrays over their contracted dimensions."""
    dot = DOTS[name]
    a, b = numbers(kind, dot.left, 1), numbers(kind, dot.right, 2)
    exact = np.einsum(dot.sum, wide(a), wide(b))
    sizes = np.einsum(dot.sum, np.abs(wide(a)).astype(float), np.abs(wide(b)).astype(float))
    terms = int(np.prod([dot.left[axis] for axis in dot.contracting[0]], dtype=int))
    lists = ", ".join(
        f"{side}_{role}_dimensions = {list(pair[place])}"
        for role, pair in (("batching", dot.batching), ("contracting", dot.contracting))
        for place, side in enumerate(("lhs", "rhs"))
    )
    made = Operation(
        "stablehlo.dot_general",
        [a, b],
        [near(kind, exact, sizes, terms)],
        f"dot_dimension_numbers = #stablehlo.dot<{lists}>, {_HIGHEST}",
    )
    verify(device, "stablehlo.dot_general", kind, made)


@checks({"bf16 to f32": ("bf16", "f32"), "s8 to s32": ("s8", "s32"), "f16 to f32": ("f16", "f32")})
def dot_general_widened(device: OperatorDevice, kind: str, to: str) -> None:
    """Sum products in a wider type than that of the operands."""
    a, b = numbers(kind, (7, 13), 1), numbers(kind, (13, 5), 2)
    if kind == "s8":
        a, b = (a * 6).astype(np.int8), (b * 6).astype(np.int8)
    exact, sizes = wide(a) @ wide(b), np.abs(wide(a)) @ np.abs(wide(b))
    made = Operation(
        "stablehlo.dot_general",
        [a, b],
        [near(to, exact, sizes, 13)],
        "dot_dimension_numbers = #stablehlo.dot<lhs_contracting_dimensions = [1], "
        f"rhs_contracting_dimensions = [0]>, {_HIGHEST}",
    )
    verify(device, "stablehlo.dot_general", kind, made)


@dataclass(frozen=True)
class Convolution:
    """Convolution of images of two dimensions; ``layout`` is as programs write it."""

    window: Window
    image: tuple[int, ...] = (2, 7, 9, 4)
    kernel: tuple[int, ...] = (2, 3, 4, 6)
    layout: str = "[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]"
    features: int = 1
    batches: int = 1
    reversal: tuple[bool, bool] = (False, False)


CONVOLUTIONS = {
    "plain": Convolution(Window((2, 3))),
    "strides": Convolution(Window((2, 3), (2, 3))),
    "padding": Convolution(Window((2, 3), padding=((1, 0), (2, 1)))),
    "lhs dilation": Convolution(Window((2, 3), base=(2, 3))),
    "rhs dilation": Convolution(Window((2, 3), dilation=(3, 2))),
    "all of it": Convolution(Window((2, 3), (2, 1), ((1, 2), (0, 3)), (2, 1), (1, 2))),
    "groups of features": Convolution(Window((2, 3)), kernel=(2, 3, 2, 6), features=2),
    "depthwise": Convolution(Window((2, 3)), kernel=(2, 3, 1, 8), features=4),
    "groups of batches": Convolution(Window((2, 3)), batches=2),
    "reversed": Convolution(Window((2, 3)), reversal=(True, False)),
    "features first": Convolution(
        Window((2, 3)), (2, 4, 7, 9), (6, 4, 2, 3), "[b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1]"
    ),
    "1 by 1": Convolution(Window((1, 1)), kernel=(1, 1, 4, 6)),
    "no image": Convolution(Window((2, 3)), (0, 7, 9, 4)),
}


@named_checks(
    {f"convolution[f32,{name}]": ("f32", name) for name in CONVOLUTIONS}
    | {
        f"convolution[{kind},all of it]": (kind, "all of it")
        for kind in ("bf16", "f16", "f64", "s32", "c64", "s8")
    }
)
def convolution(device: OperatorDevice, kind: str, name: str) -> None:
    """Convolve images with kernels."""
    given = CONVOLUTIONS[name]
    image, kernel = numbers(kind, given.image, 1), numbers(kind, given.kernel, 2)
    exact, sizes = (
        _convolved(given, part(image), part(kernel)) for part in (wide, lambda x: np.abs(wide(x)))
    )
    window = given.window
    attributes = (
        f"window_strides = {integers(window.strides)}, "
        f"padding = dense<{[list(each) for each in window.padding]}> : tensor<2x2xi64>, "
        f"lhs_dilation = {integers(window.base)}, rhs_dilation = {integers(window.dilation)}, "
        f"window_reversal = array<i1: {', '.join(str(r).lower() for r in given.reversal)}>, "
        f"dimension_numbers = #stablehlo.conv<{given.layout}>, "
        f"feature_group_count = {given.features} : i64, "
        f"batch_group_count = {given.batches} : i64, {_HIGHEST}"
    )
    made = Operation(
        "stablehlo.convolution", [image, kernel], [near(kind, exact, sizes, 30)], attributes
    )
    verify(device, "stablehlo.convolution", kind, made)


def _convolved(given: Convolution, image: Array, kernel: Array) -> Array:
    first = "f" in given.layout[:6]
    if first:
        image, kernel = image.transpose(0, 2, 3, 1), kernel.transpose(2, 3, 1, 0)
    kernel = kernel[tuple(slice(None, None, -1 if r else 1) for r in given.reversal)]
    inputs, outputs = given.features, kernel.shape[3]
    groups = max(given.features, given.batches)
    images = np.split(image, groups, axis=3 if inputs > 1 else 0) if groups > 1 else [image]
    kernels = np.split(kernel, groups, axis=3)
    assert outputs % groups == 0
    parts = []
    for own, weights in zip(images, kernels, strict=True):
        total: Any = 0
        planes = np.moveaxis(own, (1, 2), (0, 1))
        flat = planes.reshape(*planes.shape[:2], -1)
        each = [list(given.window.views(flat[:, :, n], 0)) for n in range(flat.shape[2])]
        for place in range(len(each[0])) if each else ():
            at = each[0][place][0]
            view = np.stack([views[place][1] for views in each], -1)
            view = view.reshape(*view.shape[:2], *planes.shape[2:])
            total = total + np.einsum("xybf,fo->bxyo", view, weights[at])
        if not each:
            total = np.zeros((0, given.image[1] - 1, given.image[2] - 2, weights.shape[3]))
        parts.append(total)
    result = np.concatenate(parts, 3)
    return result.transpose(0, 3, 1, 2) if first else result
