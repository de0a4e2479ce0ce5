"""Kernels that users reported after an upgrade of jax, compiled by libtpu.

Each case names its thread. It passes on the versions that compile the kernel.
"""

from typing import Any

import pytest

from harness.lanes.aot.case_compiler import CaseCompiler
from suites.multislice_flash_attention.abstract import Shapes

pytestmark = pytest.mark.lanes("tpu-aot")


@pytest.mark.topologies("v5e:2x2")
@pytest.mark.upstream("keras-team/keras-io#2284")
def test_rows_by_columns_in_one_step_each(xla_compiler: CaseCompiler, abstract: Shapes) -> None:
    """A product of 8192 × 8192, 128 whole rows by 128 whole columns in each step: 4 MiB each.

    Once each, and the result, they take half of the 16 MiB of VMEM that a kernel gets on a v5e;
    with two buffers each they are 128 KiB more than it gets.
    """
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    def product(rows: Any, columns: Any, out: Any) -> None:
        out[...] = jnp.maximum(rows[...] @ columns[...], 0)

    def multiply(x: Any, y: Any) -> Any:
        return pl.pallas_call(
            product,
            jax.ShapeDtypeStruct(x.shape, x.dtype),
            grid=(64, 64),
            in_specs=[
                pl.BlockSpec((128, 8192), lambda i, _: (i, 0)),
                pl.BlockSpec((8192, 128), lambda _, j: (0, j)),
            ],
            out_specs=pl.BlockSpec((128, 128), lambda i, j: (i, j)),
        )(x, y)

    x = abstract(8192, 8192, dtype="float32")
    compiled = xla_compiler.jax(multiply, x, x)
    assert 2 * 128 * 8192 * 4 <= compiled.program.vmem <= 16 << 20


@pytest.mark.topologies("v6e:2x2")
@pytest.mark.upstream("pytorch/helion#3117")
def test_scratch_memory_by_its_first_name(xla_compiler: CaseCompiler, abstract: Shapes) -> None:
    """``pl.kernel`` called its memory ``scratch_shapes``, as ``pallas_call`` still does."""
    import jax
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    if not hasattr(pl, "kernel"):
        pytest.skip("this release of JAX has no pl.kernel")
    size = (256, 128)

    def double(x: Any, out: Any, memory: Any) -> None:
        pltpu.sync_copy(x, memory)
        memory[...] = memory[...] * 2
        pltpu.sync_copy(memory, out)

    kernel = pl.kernel(
        double,
        jax.ShapeDtypeStruct(size, "float32"),
        mesh=pltpu.create_tensorcore_mesh("core", num_cores=1),
        scratch_shapes=[pltpu.VMEM(size, "float32")],
    )
    compiled = xla_compiler.jax(kernel, abstract(*size, dtype="float32"))
    assert compiled.program.kernels == 1


@pytest.mark.topologies("v5p:2x2x1", "v6e:2x2")
@pytest.mark.upstream("jax-ml/jax#30104")
@pytest.mark.parametrize("operator", ["compare", "round"])
def test_arithmetic_in_bfloat16(
    xla_compiler: CaseCompiler, abstract: Shapes, operator: str
) -> None:
    """What a quantized kernel does: a v5p has no such instructions, a v6e only compares."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    operators = {"compare": lambda x: jnp.where(x == 0, jnp.ones_like(x), x), "round": jnp.round}

    def apply(x: Any, out: Any) -> None:
        out[...] = operators[operator](x[...])

    shape = (256, 256)
    kernel = pl.pallas_call(apply, jax.ShapeDtypeStruct(shape, jnp.bfloat16))
    compiled = xla_compiler.jax(kernel, abstract(*shape, dtype="bfloat16"))
    assert compiled.program.kernels == 1
