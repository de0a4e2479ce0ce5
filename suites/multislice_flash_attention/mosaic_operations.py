"""What single operations of MLIR and of Mosaic compute, in NumPy."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

Array = Any
DTYPES = {
    "f32": np.float32,
    "bf16": ml_dtypes.bfloat16,
    "i1": np.bool_,
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "index": np.int64,
}
GARBAGE = 0x55  # each byte of memory that nothing has written


def unsigned(x: Array) -> Array:
    return np.asarray(x).view(f"u{np.asarray(x).dtype.itemsize}")


def truncated(x: Array, y: Array) -> Array:
    return (x - np.fmod(x, y)) // y


def either(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, y: fn(unsigned(x), unsigned(y)).view(np.asarray(x).dtype)


ORDERS = [np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal]
FLOAT_ORDERS = [np.equal, np.greater, np.greater_equal, np.less, np.less_equal, np.not_equal]
REDUCERS = {
    "add": np.add,
    "minimumf": np.minimum,
    "maximumf": np.maximum,
    "minsi": np.minimum,
    "maxsi": np.maximum,
}
PLAIN: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("arith.addf", "arith.addi"), np.add),
    **dict.fromkeys(("arith.subf", "arith.subi"), np.subtract),
    **dict.fromkeys(("arith.mulf", "arith.muli"), np.multiply),
    "arith.divf": np.divide,
    **dict.fromkeys(("arith.maximumf", "arith.maxsi"), np.maximum),
    **dict.fromkeys(("arith.minimumf", "arith.minsi"), np.minimum),
    "arith.maxui": either(np.maximum),
    "arith.minui": either(np.minimum),
    "arith.divsi": truncated,
    "arith.divui": either(np.floor_divide),
    **dict.fromkeys(("arith.remsi", "arith.remf"), np.fmod),
    "arith.remui": either(np.mod),
    "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or,
    "arith.xori": np.bitwise_xor,
    "arith.shli": np.left_shift,
    "arith.shrsi": np.right_shift,
    "arith.shrui": either(np.right_shift),
    "arith.negf": np.negative,
    "arith.select": np.where,
    **{
        f"arith.{name}": lambda x: x
        for name in ("extf", "truncf", "extsi", "trunci", "sitofp", "index_cast")
    },
    "arith.fptosi": np.trunc,
    **dict.fromkeys(
        ("arith.extui", "arith.uitofp"), lambda x: x if x.dtype == bool else unsigned(x)
    ),
    **{
        f"math.{name}": getattr(np, name)
        for name in ("exp", "exp2", "log", "log1p", "sqrt", "sin", "cos", "tan", "tanh", "ceil")
    },
    "math.floor": np.floor,
    **dict.fromkeys(("math.absf", "math.absi"), np.abs),
    "math.rsqrt": lambda x: 1 / np.sqrt(x),
    "math.powf": np.power,
    "math.roundeven": np.rint,
    "math.round": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
    "math.ctpop": np.vectorize(lambda x: (int(x) & 0xFFFFFFFF).bit_count()),
    "math.ctlz": np.vectorize(lambda x: 32 - (int(x) & 0xFFFFFFFF).bit_length()),
    "tpu.reciprocal": lambda x: 1 / x,
    "tpu.logistic": lambda x: 1 / (1 + np.exp(-x)),
    "tpu.weird": lambda x: ~np.isfinite(x),
    "tpu.assume_multiple": lambda x: x,
}


def numbers(attribute: Any) -> list[int]:
    """Return the integers of an array attribute of any kind."""
    return [getattr(each, "value", each) for each in attribute]


def bitcast(x: Array, dtype: Any, shape: Sequence[int]) -> Array:
    """Return the bits of registers, which hold narrow numbers of consecutive rows."""
    width = np.dtype(dtype).itemsize
    *lead, rows, columns = x.shape
    if width > x.dtype.itemsize:
        several = width // x.dtype.itemsize
        x = x.reshape(*lead, rows // several, several, columns).swapaxes(-1, -2)
        return np.ascontiguousarray(x).view(dtype).reshape(shape)
    parts = np.ascontiguousarray(x)[..., None].view(dtype)
    return parts.swapaxes(-1, -2).reshape(shape)


def matmul(x: Array, y: Array, start: Array, dimensions: str) -> Array:
    """Return the product, each batch and contracted dimension by its letter."""
    groups = [[int(n) for n in g.split(",") if n] for g in re.findall(r"\[([\d, ]*)\]", dimensions)]
    of_x, of_y, _, _, order, batch_x, batch_y = groups
    letters = [list("abcd"[: x.ndim]), list("efgh"[: y.ndim])]
    for n, m in zip([*of_x, *batch_x], [*of_y, *batch_y], strict=True):
        letters[1][m] = letters[0][n]
    out = [letters[side][n] for side, n in zip(order[::2], order[1::2], strict=True)]
    wide = np.int64 if x.dtype.kind == "i" else np.float64
    formula = f"{''.join(letters[0])},{''.join(letters[1])}->{''.join(out)}"
    return np.einsum(formula, x.astype(wide), y.astype(wide)) + start


def garbage(shape: Sequence[int], dtype: Any) -> Array:
    """Return memory that nothing has written."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.full(size, GARBAGE, np.uint8).view(dtype).reshape(shape)
