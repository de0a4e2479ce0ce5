"""Kernels that users of GPUs reported after an upgrade of jax: their own, and those that XLA makes.

Each case names its thread. It passes on the versions that have the defect neither yet nor any more,
so ``qualify`` and ``since`` say which versions those are.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from harness.lanes.aot.case_compiler import CaseCompiler
from suites.shared.jax_releases import jitted, unreadable_before_0_4_30

pytestmark = unreadable_before_0_4_30
on_one_gpu = pytest.mark.topologies("h100:1")
executed = pytest.mark.lanes("virtual-gpu")


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
@on_one_gpu
@pytest.mark.upstream("openxla/xla#42041", "jax-ml/jax#31149")
@pytest.mark.environment(
    XLA_FLAGS="--xla_gpu_enable_while_loop_unrolling=WHILE_LOOP_UNROLLING_FULL_UNROLL"
)
def test_loops_unrolled_in_full() -> None:
    """In every program, this one too, which has no loop."""
    compile_for((), fn=lambda n: n + 1)


@pytest.mark.lanes("gpu-aot")
@pytest.mark.topologies("h100:8")
@pytest.mark.upstream("marin-community/marin#5394")
def test_memory_of_a_layer_of_experts(xla_compiler: CaseCompiler) -> None:
    """For its gradient a layer keeps one operand of each of its two products, for each expert.

    The compiler makes a product of all tokens with every expert of ``ragged_dot``.
    """
    mesh = Mesh(np.array(xla_compiler.devices), ("x",))
    whole, parts = PartitionSpec(), PartitionSpec("x")
    tokens, experts, width = 8192, 16, 512

    def array(*shape: int, spec: PartitionSpec, dtype: Any = jnp.bfloat16) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))

    def temporaries(layers: int) -> int:
        def loss(weights: Any, x: Any, sizes: Any) -> Any:
            for first, second in weights:
                hidden = jax.nn.silu(lax.ragged_dot(x, first, sizes[0]))
                x += lax.ragged_dot(hidden, second, sizes[0])
            return jnp.square(x.astype(jnp.float32)).sum()

        def gradients(*arguments: Any) -> Any:
            return lax.psum(jax.grad(loss)(*arguments), "x")

        weights = [[array(experts, width, width, spec=whole)] * 2] * layers
        x = array(len(mesh.devices) * tokens, width, spec=parts)
        sizes = array(len(mesh.devices), experts, spec=parts, dtype=jnp.int32)
        step = jitted(gradients, mesh, (whole, parts, parts), whole)
        return xla_compiler.jax(step, weights, x, sizes).memory.temporaries

    kept = (temporaries(8) - temporaries(4)) / 4
    operand = experts * tokens * width * 2
    assert kept < 3 * operand


@executed
@on_one_gpu
@pytest.mark.upstream("marin-community/marin#5347")
def test_rows_that_a_mask_leaves() -> None:
    """A kernel for Triton, by Pallas's first names of masked reads and writes."""
    from jax.experimental import pallas as pl

    def double(x: Any, out: Any) -> None:
        mask = jnp.arange(128) < 100
        rows = pl.load(x, (pl.dslice(0, 128),), mask=mask, other=0.0)
        pl.store(out, (pl.dslice(0, 128),), rows * 2, mask=mask)

    x = np.arange(128, dtype=np.float32)
    doubled = jax.jit(pl.pallas_call(double, jax.ShapeDtypeStruct(x.shape, x.dtype)))(x)
    np.testing.assert_array_equal(doubled[:100], 2 * x[:100])


@executed
@on_one_gpu
@pytest.mark.skipif(jax.__version_info__ < (0, 6), reason="no streams of GPUs in JAX before 0.6")
@pytest.mark.upstream("NVIDIA/TransformerEngine#3304", "NVIDIA/TransformerEngine#3406")
def test_product_on_a_stream_of_its_own() -> None:
    from jax.experimental.compute_on import compute_on

    @compute_on("gpu_stream:1")
    @jax.jit
    def square(x: Any) -> Any:
        return x * x

    x = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(jax.jit(lambda x: square(x) + 1)(x), x * x + 1)


@executed
@on_one_gpu
@pytest.mark.upstream("jax-ml/jax#40888")
def test_product_of_experts_by_triton() -> None:
    """By the option that JAX documents, where a release has it."""
    option = "jax_ragged_dot_use_gpu_pallas_triton_lowering"
    if option in jax.config.values:
        jax.config.update(option, val=True)
    rows, experts = np.ones((16, 4), np.float32), np.ones((2, 4, 3), np.float32)
    product = jax.jit(lax.ragged_dot)(rows, experts, np.array([8, 8], np.int32))
    np.testing.assert_array_equal(product, np.full((16, 3), 4))
