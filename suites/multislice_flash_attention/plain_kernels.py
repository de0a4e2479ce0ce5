"""What cases of small Pallas kernels share: their inputs, and how they are called."""

from typing import Any

import numpy as np
import pytest
from jax.experimental import pallas as pl

BOTH = pytest.mark.parametrize("interpret", [False, True], ids=["lowered", "interpreted"])
EVERYWHERE = pl.BlockSpec(memory_space=getattr(pl, "ANY", None))  # JAX 0.4.33 has none


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    """Return normally distributed numbers of 32 bits."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def copy(x: Any, out: Any) -> None:
    """Copy a block in a kernel."""
    out[...] = x[...]
