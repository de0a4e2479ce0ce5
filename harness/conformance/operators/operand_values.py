"""Operands: special values of each element type, and numbers that a seed decides."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np

from harness.conformance.operators.element_types import (
    COMPLEX,
    FLOATS,
    PARTS,
    UNSIGNED,
    Array,
    dtype,
)

SHAPES = {  # each class of shapes that an operator's code is likely to have a case for
    "scalar": (),
    "vector": (17,),
    "size 1": (1, 1),
    "empty": (3, 0, 2),
    "uneven": (7, 13),
    "large": (129, 257),
    "rank 5": (2, 3, 1, 4, 5),
}


def specials(kind: str) -> Array:
    """Return the values at which operators change: limits, zeros, infinities, NaN, ties."""
    if kind in COMPLEX:
        parts = np.array([0.25, 1, -1, 0.5, -2.25, 3])
        return (parts[:, None] + 1j * parts[None, :]).reshape(-1).astype(dtype(kind))
    own = dtype(kind)
    if kind == "pred":
        return np.array([False, True])
    if kind not in FLOATS:
        limits = ml_dtypes.iinfo(own)
        low, high = int(limits.min), int(limits.max)
        given = {low, low + 1, low // 2, -1, 0, 1, 2, 3, 5, high // 2, high - 1, high}
        return (
            np.array(sorted(v for v in given if low <= v <= high), object)
            .astype(np.int64 if low else np.uint64)
            .astype(own)
        )
    wide = ml_dtypes.finfo(own)
    positive = [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, np.pi, 7.0]
    positive += [float(wide.max), float(wide.smallest_normal)]
    positive += [1 + float(wide.eps), 1 - float(wide.eps) / 2, np.inf]
    with np.errstate(all="ignore"):
        return np.array([*positive, *(-v for v in positive), np.nan]).astype(own)


def mixed(kind: str, shape: Sequence[int]) -> Array:
    """Return special values and others in turn."""
    others = numbers(kind, (max(int(np.prod(shape)), 1),), 3)
    every = np.empty(2 * len(others), dtype(kind))
    every[::2] = np.resize(specials(kind), len(others))
    every[1::2] = others
    return np.resize(every, shape)


def denormals(kind: str) -> Array:
    """Return the smallest numbers of a type, which devices may take as zeros."""
    limits = ml_dtypes.finfo(dtype(kind))
    small, normal = float(limits.smallest_subnormal), float(limits.smallest_normal)
    positive = [small, 3 * small, normal / 2, normal - small]
    return np.array([*positive, *(-each for each in positive)]).astype(dtype(kind))


def numbers(kind: str, shape: Sequence[int], seed: int = 0, spread: float = 0.0) -> Array:
    """Return numbers of moderate size, or of so many binary orders of magnitude around 1."""
    chance = np.random.default_rng([seed, len(shape), *shape])
    own = dtype(kind)
    if kind == "pred":
        return chance.integers(0, 2, shape).astype(own)
    if kind in COMPLEX:
        part = PARTS[own]
        return (chance.normal(size=shape) + 1j * chance.normal(size=shape)).astype(
            part.char.upper()
        )
    if kind in FLOATS:
        scale = np.exp2(chance.uniform(-spread, spread, shape)) if spread else 1.0
        values = np.asarray(chance.normal(size=shape) * scale)
        limit = float(ml_dtypes.finfo(own).max)
        return np.clip(values, -limit, limit).astype(own)
    limits = ml_dtypes.iinfo(own)
    low = 0 if kind in UNSIGNED else max(int(limits.min), -20)
    return chance.integers(low, min(int(limits.max), 20) + 1, shape).astype(own)
