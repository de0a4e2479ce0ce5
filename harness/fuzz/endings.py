"""How a random program ended, in the words of ``RandomEnding``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

_ROUNDING = {"bfloat16": 0.03, "float16": 0.03}


def described(kind: str, detail: str, text: str = "", exchanged: int = 0) -> Mapping[str, Any]:
    """Return an ending as the executor writes it."""
    return {"kind": kind, "detail": detail, "stablehlo": text, "exchanged": exchanged}


def first_line(error: Exception) -> str:
    """Return the name of an exception and the first line of its text."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:400]


def different(results: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> str:
    """Describe the first value that is wrong by more than rounding, "" for none."""
    for number, (result, right) in enumerate(zip(results, expected, strict=True)):
        if result.shape != right.shape:
            return f"result {number}: its shape is {result.shape}, expected {right.shape}"
        own, limit = result.astype(float), _ROUNDING.get(str(result.dtype), 1e-3)
        wrong = ~np.isclose(own, right, rtol=limit, atol=limit)
        if wrong.any():
            place = tuple(map(int, np.argwhere(wrong)[0]))
            return f"result {number}: {list(place)} is {own[place]}, expected {right[place]}"
    return ""
