"""What cases of small Pallas kernels share: their inputs, and how they are called."""

import json
import re
from collections.abc import Callable
from typing import Any

import jax
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


def custom_call(fn: Callable[..., Any], *operands: Any) -> tuple[dict[str, Any], str]:
    """Return the configuration of the only custom call of a lowered function, and its line."""
    lines = jax.jit(fn).lower(*operands).as_text().splitlines()
    (line,) = (line for line in lines if "@tpu_custom_call" in line)
    (text,) = re.findall(r'backend_config = "([^"]*)"', line)
    text = text.replace("\\22", '"').replace("\\0A", "")
    configuration = json.loads(text.replace(", value: {", ', "value": {'))
    return configuration | configuration.pop("custom_call_config"), line
