"""What JAX's kernels are compiled as: functions of abstract arrays, and their gradients."""

from collections.abc import Callable
from typing import Any

Shapes = Callable[..., Any]  # the fixture ``abstract``


def summed(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The gradients of the sum of what ``fn`` of queries, keys and values returns."""
    import jax

    def loss(*leaves: Any) -> Any:
        return fn(*leaves).astype("float32").sum()

    return jax.grad(loss, argnums=(0, 1, 2))
