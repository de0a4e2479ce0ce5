"""What JAX's kernels are compiled as: functions of abstract arrays, and their gradients."""

from collections.abc import Callable
from typing import Any

Shapes = Callable[..., Any]  # the fixture ``abstract``


def summed(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return the gradient of the sum of ``fn``'s result in its queries, keys and values."""
    import jax

    def loss(*leaves: Any) -> Any:
        return fn(*leaves).astype("float32").sum()

    return jax.grad(loss, argnums=(0, 1, 2))
