"""Random numbers that a TPU makes in hardware: others here, the same whenever the seed is the same.

JAX's TPU interpret mode has zeros for them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from harness.lanes.virtual.kernel_calls import InPython

BITS = "prng_random_bits"

_Place = tuple[int, int]  # device, core


def call_for(equation: Any) -> InPython | None:
    """Return what an equation calls if it seeds a core's generator or takes bits from it."""
    if equation.primitive.name == BITS:
        return InPython(partial(_bits, equation.params["shape"]))
    return InPython(_seed) if equation.primitive.name == "prng_seed" else None


def _generators(memory: Any) -> dict[_Place, Any]:
    """Return the generator of each core, which the interpreter's memory keeps."""
    own: dict[_Place, Any] = vars(memory).setdefault("generators", {})
    return own


def _seed(memory: Any, place: _Place, *numbers: Any) -> Any:
    import numpy as np

    seed = np.random.SeedSequence([int(number) & 0xFFFFFFFF for number in numbers])
    _generators(memory)[place] = np.random.Generator(np.random.Philox(seed))
    return np.int32(0)


def _bits(shape: tuple[int, ...], memory: Any, place: _Place) -> Any:
    import numpy as np

    if place not in _generators(memory):
        raise ValueError("a kernel takes random bits before pltpu.prng_seed")
    return _generators(memory)[place].integers(-(2**31), 2**31, shape, np.int32)
