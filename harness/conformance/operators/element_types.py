"""The element types of StableHLO, and what each is called in programs, in PJRT and in NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]


class ElementType(NamedTuple):
    """An element type: the name in ids of checks, and in programs, PJRT's, and NumPy's."""

    name: str
    text: str
    buffer: str
    dtype: np.dtype[Any]


def _integers() -> list[ElementType]:
    made = []
    for bits in (2, 4, 8, 16, 32, 64):
        for name, text, stem in (("s", "i", "int"), ("u", "ui", "uint")):
            kind = getattr(ml_dtypes if bits < 8 else np, f"{stem}{bits}")
            buffer = f"{name.upper()}{bits}"
            made.append(ElementType(f"{name}{bits}", f"{text}{bits}", buffer, np.dtype(kind)))
    return made


_EIGHT_BITS = {
    "f8E5M2": ml_dtypes.float8_e5m2,
    "f8E4M3FN": ml_dtypes.float8_e4m3fn,
    "f8E4M3": ml_dtypes.float8_e4m3,
    "f8E3M4": ml_dtypes.float8_e3m4,
    "f8E4M3B11FNUZ": ml_dtypes.float8_e4m3b11fnuz,
    "f8E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
    "f8E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
}
_ALL = (
    ElementType("pred", "i1", "PRED", np.dtype(np.bool_)),
    *_integers(),
    *(ElementType(name, name, name.upper(), np.dtype(kind)) for name, kind in _EIGHT_BITS.items()),
    ElementType("bf16", "bf16", "BF16", np.dtype(ml_dtypes.bfloat16)),
    ElementType("f16", "f16", "F16", np.dtype(np.float16)),
    ElementType("f32", "f32", "F32", np.dtype(np.float32)),
    ElementType("f64", "f64", "F64", np.dtype(np.float64)),
    ElementType("c64", "complex<f32>", "C64", np.dtype(np.complex64)),
    ElementType("c128", "complex<f64>", "C128", np.dtype(np.complex128)),
)
TYPES: Mapping[str, ElementType] = {each.name: each for each in _ALL}
_BY_DTYPE = {each.dtype: each for each in _ALL}

SIGNED = tuple(name for name in TYPES if name.startswith("s"))
UNSIGNED = tuple(name for name in TYPES if name.startswith("u"))
INTEGERS = (*SIGNED, *UNSIGNED)
EIGHT_BITS = tuple(_EIGHT_BITS)
FLOATS = (*EIGHT_BITS, "bf16", "f16", "f32", "f64")
COMPLEX = ("c64", "c128")
PARTS: Mapping[np.dtype[Any], np.dtype[Any]] = {
    np.dtype(np.complex64): np.dtype(np.float32),
    np.dtype(np.complex128): np.dtype(np.float64),
}


def of(array: Array) -> ElementType:
    """Return the element type of an array."""
    return _BY_DTYPE[array.dtype]


def dtype(name: str) -> np.dtype[Any]:
    """Return NumPy's type for the name of an element type."""
    return TYPES[name].dtype


def tensor(shape: Sequence[int], kind: ElementType) -> str:
    """Return a tensor's type as programs write it, such as ``tensor<2x3xf32>``."""
    return f"tensor<{''.join(f'{size}x' for size in shape)}{kind.text}>"


def is_float(kind: np.dtype[Any]) -> bool:
    """Return whether a type is a real floating-point one, which NumPy does not know of all."""
    return kind in _BY_DTYPE and _BY_DTYPE[kind].name in FLOATS
