"""How accurate results have to be: one table.

StableHLO names operations of IEEE 754, which are correctly rounded, and says of all others that it
gives no guarantee about accuracy (https://github.com/openxla/stablehlo/blob/main/docs/spec.md).
Those have the bounds that OpenCL C states for its functions of the same name, in the full profile.
Where no standard has one, the bound is ours: it was chosen so that OpenXLA's CPU plugin conforms,
and so says how a plugin compares with that one.
"""

from __future__ import annotations

from typing import NamedTuple

_OPENCL = "OpenCL C 3.0, relative error as ULPs"
OURS = "ours"


class Accuracy(NamedTuple):
    """The largest distance in ULPs from the exact result, by element type, its source, and why.

    ``narrow`` is of f16 and bf16. OpenCL has it for half precision, and nothing for bf16.
    """

    f32: float
    f64: float
    narrow: float
    source: str = _OPENCL
    reason: str = ""


_EXACT = Accuracy(0.5, 0.5, 0.5, "IEEE 754", "the specification names the operation of IEEE 754")
TABLE = {
    "cbrt": Accuracy(2, 2, 2),
    "rsqrt": Accuracy(2, 2, 1),
    "exponential": Accuracy(3, 3, 2),
    "exponential_minus_one": Accuracy(3, 3, 2),
    "log": Accuracy(3, 3, 2),
    "log_plus_one": Accuracy(2, 2, 2),
    "sine": Accuracy(4, 4, 2),
    "cosine": Accuracy(4, 4, 2),
    "tan": Accuracy(5, 5, 2.5),
    "tanh": Accuracy(5, 5, 2),
    "power": Accuracy(16, 16, 4),
    "atan2": Accuracy(6, 6, 2),
    "erf": Accuracy(16, 16, 4),
    "erfc": Accuracy(16, 16, 4),
    "asin": Accuracy(4, 4, 2),
    "acos": Accuracy(4, 4, 2),
    "atan": Accuracy(5, 5, 2),
    "asinh": Accuracy(4, 4, 2),
    "acosh": Accuracy(4, 4, 2),
    "atanh": Accuracy(5, 5, 2),
    "sinh": Accuracy(4, 4, 2),
    "cosh": Accuracy(4, 4, 2),
    "lgamma": Accuracy(64, 128, 3, OURS, "OpenCL leaves it undefined"),
    "logistic": Accuracy(6, 6, 3, OURS, "an exponential, a sum and a division"),
    "complex": Accuracy(16, 16, 16, OURS, "of the modulus; no standard bounds complex functions"),
    "complex power": Accuracy(64, 64, 64, OURS, "a logarithm is multiplied before exp"),
}
_EIGHT_BITS = 0.6  # ours: IEEE 754 lacks these formats, and results in f16 are rounded again


def ulps(operator: str, kind: str) -> float:
    """Return how many ULPs a result of that operator and element type may be away."""
    entry = TABLE.get(operator, _EXACT)
    if kind in ("f64", "c128"):
        return entry.f64
    if kind in ("f32", "c64"):
        return entry.f32
    return max(entry.narrow, _EIGHT_BITS) if kind.startswith("f8") else entry.narrow
