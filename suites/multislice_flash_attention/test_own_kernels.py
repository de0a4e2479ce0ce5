"""Pallas kernels that a user writes, through make_kernel_from_pallas."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_xla  # noqa: F401 - without it there is nothing to ask

from harness.session.fixtures import StartRuntime

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("2x1"),
    pytest.mark.upstream("pytorch/xla#8850"),
]
N = 256


def kernel_of(call: Callable[..., Any], *shapes_from: int) -> Callable[..., Any]:
    """torch_xla's function of a JAX function; its results have the named arguments' shapes."""
    from torch_xla.experimental.custom_kernel import jax_import_guard, make_kernel_from_pallas

    jax_import_guard()
    shapes = shapes_from or (0,)
    return make_kernel_from_pallas(
        call, lambda *args: [(args[n].shape, args[n].dtype) for n in shapes]
    )


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(3)) * 8
    return values.to(dtype)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int32], ids=["f32", "bf16", "i32"]
)
def test_elementwise(start_runtime: StartRuntime, dtype: torch.dtype) -> None:
    start_runtime(spmd=False)
    import jax
    from jax.experimental import pallas as pl

    def double_less_one(x: Any, out: Any) -> None:
        out[...] = x[...] * 2 - 1

    def call(x: Any) -> Any:
        return pl.pallas_call(double_less_one, jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    host = random(N, N, dtype=dtype)
    assert torch.equal(kernel_of(call)(host.to("xla")).cpu(), host * 2 - 1)


def test_blocks(start_runtime: StartRuntime) -> None:
    """A grid of four blocks: each is transposed to its place."""
    start_runtime(spmd=False)
    import jax
    from jax.experimental import pallas as pl

    def transpose(x: Any, out: Any) -> None:
        out[...] = x[...].T

    def call(x: Any) -> Any:
        return pl.pallas_call(
            transpose,
            jax.ShapeDtypeStruct(x.shape, x.dtype),
            grid=(2, 2),
            in_specs=[pl.BlockSpec(block_shape=(N // 2, N // 2), index_map=lambda i, j: (i, j))],
            out_specs=pl.BlockSpec(block_shape=(N // 2, N // 2), index_map=lambda i, j: (j, i)),
        )(x)

    host = random(N, N)
    assert torch.equal(kernel_of(call)(host.to("xla")).cpu(), host.T)


def test_two_results(start_runtime: StartRuntime) -> None:
    start_runtime(spmd=False)
    import jax
    from jax.experimental import pallas as pl

    def both(x: Any, y: Any, larger: Any, smaller: Any) -> None:
        import jax.numpy as jnp

        larger[...] = jnp.maximum(x[...], y[...])
        smaller[...] = jnp.minimum(x[...], y[...])

    def call(x: Any, y: Any) -> Any:
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return pl.pallas_call(both, (shape, shape))(x, y)

    x = random(N, N)
    larger, smaller = kernel_of(call, 0, 1)(x.to("xla"), x.T.contiguous().to("xla"))
    assert torch.equal(larger.cpu(), torch.maximum(x, x.T))
    assert torch.equal(smaller.cpu(), torch.minimum(x, x.T))


def test_scratch_memory_and_loop(start_runtime: StartRuntime) -> None:
    """An accumulator in VMEM over the last grid dimension: a matmul by blocks."""
    start_runtime(spmd=False)
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def matmul(x: Any, y: Any, out: Any, total: Any) -> None:
        @pl.when(pl.program_id(0) == 0)
        def start() -> None:
            total[...] = jnp.zeros_like(total)

        total[...] += jnp.dot(x[...], y[...], preferred_element_type=jnp.float32)

        @pl.when(pl.program_id(0) == pl.num_programs(0) - 1)
        def finish() -> None:
            out[...] = total[...]

    def call(x: Any, y: Any) -> Any:
        return pl.pallas_call(
            matmul,
            jax.ShapeDtypeStruct((N, N), x.dtype),
            grid=(2,),
            in_specs=[
                pl.BlockSpec(block_shape=(N, N // 2), index_map=lambda k: (0, k)),
                pl.BlockSpec(block_shape=(N // 2, N), index_map=lambda k: (k, 0)),
            ],
            out_specs=pl.BlockSpec(block_shape=(N, N), index_map=lambda _: (0, 0)),
            scratch_shapes=[pltpu.VMEM((N, N), jnp.float32)],
        )(x, y)

    x = random(N, N) / 8
    result = kernel_of(call)(x.to("xla"), x.T.contiguous().to("xla")).cpu().double()
    torch.testing.assert_close(result, x.double() @ x.double().T, rtol=1e-4, atol=1e-3)


def test_between_operations(start_runtime: StartRuntime) -> None:
    """The kernel inside of a larger program of torch_xla's."""
    start_runtime(spmd=False)
    import jax
    from jax.experimental import pallas as pl

    def square(x: Any, out: Any) -> None:
        out[...] = x[...] * x[...]

    def call(x: Any) -> Any:
        return pl.pallas_call(square, jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    host = random(N, N)
    result = kernel_of(call)(host.to("xla") + 1).sum(dim=0).cpu().double()
    torch.testing.assert_close(result, (host.double() + 1).square().sum(0), rtol=1e-5, atol=1e-3)
