"""Products of numbers with a scale for each block of them, which cuDNN computes on a GPU."""

from __future__ import annotations

from typing import Any

from harness.lanes import events

_NAME = "custom-call.__cudnn$blockScaledDot"  # by which tests see what cuDNN is to compute


def compute_in_32_bits(scaled_matmul: Any) -> None:
    """Have JAX's module of ``jax.nn.scaled_matmul`` multiply by the scales, and add in 32 bits.

    https://github.com/jax-ml/jax/blob/main/jax/_src/cudnn/scaled_matmul_stablehlo.py
    """
    from jax._src.interpreters import mlir

    def rule(context: Any, *operands: Any, **parameters: Any) -> Any:
        events.note("rewrite", rewrite="scaled product of cuDNN")
        return mlir.lower_fun(_product, multiple_results=True)(context, *operands, **parameters)

    mlir.register_lowering(scaled_matmul._scaled_matmul_p, rule, platform="cuda")


def _product(a: Any, b: Any, a_scales: Any, b_scales: Any, preferred_element_type: Any) -> Any:
    """Multiply ``[batch, rows, depth]`` by ``[batch, columns, depth]``."""
    import jax

    with jax.named_scope(_NAME):
        product = jax.lax.dot_general(
            _scaled(a, a_scales),
            _scaled(b, b_scales),
            (((2,), (2,)), ((0,), (0,))),
            precision=jax.lax.Precision.HIGHEST,
        )
    return [product.astype(preferred_element_type)]


def _scaled(numbers: Any, scales: Any) -> Any:
    """Return numbers multiplied by the scales of their blocks, which divide the last dimension."""
    blocks = numbers.astype("float32").reshape(*scales.shape, -1)
    return (blocks * scales.astype("float32")[..., None]).reshape(numbers.shape)
