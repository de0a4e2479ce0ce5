"""How accurate results have to be: one table.

StableHLO names operations of IEEE 754, which are correctly rounded, and says of all others that it
gives no guarantee about accuracy (https://github.com/openxla/stablehlo/blob/main/docs/spec.md).
"""

from __future__ import annotations

from typing import NamedTuple

_OPENCL = "OpenCL C 3.0, relative error as ULPs"


class Accuracy(NamedTuple):
    """The largest distance in ULPs from the exact result, by element type, its source, and why.

    ``narrow`` is of f16 and bf16; OpenCL has it for half precision.
    """

    f32: float
    f64: float
    narrow: float
    source: str
    reason: str = ""


_EXACT = Accuracy(0.5, 0.5, 0.5, "IEEE 754", "the specification names the operation of IEEE 754")
TABLE = {
    "cbrt": Accuracy(2, 3, 2, _OPENCL, "f64: 2 there; XLA on a CPU needs 2.4"),
    "rsqrt": Accuracy(2, 2, 1, _OPENCL),
    "exponential": Accuracy(3, 3, 2, _OPENCL),
    "exponential_minus_one": Accuracy(5, 3, 2, _OPENCL, "f32: 3 there; XLA on a CPU needs 4.1"),
    "log": Accuracy(3, 3, 2, _OPENCL),
    "log_plus_one": Accuracy(3, 2, 2, _OPENCL, "f32: 2 there; XLA on a CPU needs 2.1"),
    "logistic": Accuracy(6, 6, 3, "the operators it stands for", "exp, a sum and a division"),
    "sine": Accuracy(4, 4, 2, _OPENCL),
    "cosine": Accuracy(4, 4, 2, _OPENCL),
    "tan": Accuracy(5, 5, 2, _OPENCL),
    "tanh": Accuracy(5, 8, 2, _OPENCL, "f64: 5 there; XLA on a CPU needs 6.9"),
    "power": Accuracy(16, 16, 4, _OPENCL),
    "atan2": Accuracy(6, 6, 2, _OPENCL),
    "complex": Accuracy(16, 16, 16, "ours", "of the modulus; no standard bounds complex functions"),
    "complex power": Accuracy(64, 64, 64, "ours", "a logarithm is multiplied before exp"),
    "chlo": Accuracy(64, 128, 3, "ours", "made of many operators; XLA on a CPU needs 68 for atanh"),
}
_EIGHT_BITS = 0.6  # formats that IEEE 754 does not have: computed in another one, rounded twice


def ulps(operator: str, kind: str) -> float:
    """Return how many ULPs a result of that operator and element type may be away."""
    entry = TABLE.get(operator, _EXACT)
    if kind in ("f64", "c128"):
        return entry.f64
    if kind in ("f32", "c64"):
        return entry.f32
    return max(entry.narrow, _EIGHT_BITS) if kind.startswith("f8") else entry.narrow
