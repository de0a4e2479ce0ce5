"""Kernels that users of GPUs reported after an upgrade of jax: their own, and those that XLA makes.

Each case names its thread. It passes on the versions that have the defect neither yet nor any more,
so ``qualify`` and ``since`` say which versions those are.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest


def compile_for(*shapes: tuple[int, ...], fn: Any) -> None:
    """Compile ``fn`` of 32-bit numbers; the lane gives the program to the CUDA compiler, too."""
    jax.jit(fn).lower(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)).compile()


@pytest.mark.lanes("gpu-aot")
@pytest.mark.topologies("h100:1", "l4:1")
@pytest.mark.upstream("jax-ml/jax#39157")
@pytest.mark.parametrize("vectors", [23, 100])
def test_sums_beside_rows_of_a_matrix(vectors: int) -> None:
    """Which sizes fail depends on the GPU, as which kernels XLA makes of the program does."""

    def angles(x: Any) -> Any:
        forward = x / jnp.sum(x * x, -1, keepdims=True)
        left = jnp.cross(forward, x)
        matrix = jnp.stack([left, forward, left], -1)
        return jnp.concatenate([matrix[..., 0, :], jnp.sum(x, -1)[..., None]], -1)

    compile_for((1, vectors, 3), fn=angles)


@pytest.mark.lanes("gpu-aot")
@pytest.mark.topologies("h100:1")
@pytest.mark.upstream("openxla/xla#42041", "jax-ml/jax#31149")
@pytest.mark.environment(
    XLA_FLAGS="--xla_gpu_enable_while_loop_unrolling=WHILE_LOOP_UNROLLING_FULL_UNROLL"
)
def test_loops_unrolled_in_full() -> None:
    """In every program, this one too, which has no loop."""
    compile_for((), fn=lambda n: n + 1)
