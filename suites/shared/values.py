"""Inputs of collectives: reducers, dtypes, shapes, and the values of each rank."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import ml_dtypes
import numpy as np
from packaging.version import Version

DTYPES = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
    "int32": np.dtype(np.int32),
    "int64": np.dtype(np.int64),
    "uint8": np.dtype(np.uint8),
    "bool": np.dtype(np.bool_),
}
SHAPES = {
    "scalar": (),
    "empty": (0,),
    "empty2d": (0, 3),
    "one": (1,),
    "odd": (7,),
    "ragged": (3, 5),
    "rank4": (2, 1, 3, 5),
    "large": (513, 257),
}


@dataclass(frozen=True)
class Reducer:
    """A reduction under each of its names: in `xm`, in `torch.distributed`, and in StableHLO."""

    name: str
    c10d: str
    operation: str


REDUCERS = {
    reducer.name: reducer
    for reducer in (
        Reducer("sum", "SUM", "add"),
        Reducer("mul", "PRODUCT", "multiply"),
        Reducer("min", "MIN", "minimum"),
        Reducer("max", "MAX", "maximum"),
        Reducer("and", "BAND", "and"),
        Reducer("or", "BOR", "or"),
    )
}
ARITHMETIC = ("sum", "mul", "min", "max")
BITWISE = ("and", "or")
NUMERIC = ("float32", "bfloat16", "float16", "int32", "int64", "uint8")
INTEGRAL = ("int32", "int64", "uint8", "bool")

REDUCTIONS = [(reducer, dtype) for reducer in ARITHMETIC for dtype in NUMERIC] + [
    (reducer, dtype) for reducer in BITWISE for dtype in INTEGRAL
]


def executable(reducer: str, dtype: str) -> bool:
    """Whether XLA's CPU client can reduce so: it has no bitwise all-reduce of integers."""
    return reducer in ARITHMETIC or dtype == "bool"


def rewritten() -> bool:
    """Whether the virtual TPU rewrites what XLA's CPU client lacks, which it does by JAX's FFI."""
    try:
        return Version(version("jax")) >= Version("0.4.31")
    except PackageNotFoundError:
        return False


# Of odd magnitudes, of which eight add up exactly. Those of float32 are all too long for bfloat16.
_HALVES = {"float32": (128, 2048), "float16": (0, 100)}


def values(dtype: str, shape: tuple[int, ...], rank: int, reducer: str = "sum") -> np.ndarray:
    """Return the input of `rank`, of any magnitude that every order of reduction keeps exact.

    Eight ranks stay exact in their dtype, so that results can be compared bit for bit, and float32
    and float16 have more digits than bfloat16, so that who reduces in that is wrong. No number is
    zero, which a maximum and a sum may agree on; uint8 covers its range, and wraps.
    """
    random = np.random.default_rng([rank, len(shape)])
    if shape == ():  # lazy tensors inline a 0-d zero or one: the ranks' programs would differ
        return np.asarray(2 * (rank % 3) + 2, DTYPES[dtype])
    if dtype == "bool":
        return np.asarray(random.integers(0, 2, shape), np.bool_)
    if dtype == "uint8":
        return np.asarray(random.integers(0, 256, shape), np.uint8)
    if reducer == "mul" and DTYPES[dtype].kind not in "iu":
        long = dtype == "float32" and rank < 4  # the product of two is too long for bfloat16
        factors = [17 / 16, 19 / 16] if long else [0.5, 1.0, 2.0]
        return np.asarray(random.choice([*factors, *np.negative(factors)], shape), DTYPES[dtype])
    magnitude = 2 * random.integers(*_HALVES.get(dtype, (0, 4)), shape) + 1
    return np.asarray(magnitude * random.choice([-1, 1], shape), DTYPES[dtype])


def ranks_of(
    world: int, shape: tuple[int, ...], dtype: str = "float32", reducer: str = "sum"
) -> list[np.ndarray]:
    """Return one input per rank."""
    return [values(dtype, shape, rank, reducer) for rank in range(world)]


def columns(*inputs: list[np.ndarray]) -> list[tuple[np.ndarray, ...]]:
    """Turn inputs per tensor into inputs per rank."""
    return list(zip(*inputs, strict=True))
