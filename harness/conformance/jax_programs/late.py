"""JAX and NumPy, imported when a program runs: listing the checks needs neither."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class _Late:
    """A module that is imported when something of it is needed."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self._name), attribute)


jax: Any = _Late("jax")
jnp: Any = _Late("jax.numpy")
lax: Any = _Late("jax.lax")
np: Any = _Late("numpy")

IMPORTS = """from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
"""
