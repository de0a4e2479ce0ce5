"""The Pallas kernels that JAX ships, at the shapes of models, compiled by libtpu without torch.

Before an upgrade of jax or libtpu it shows which kernels no longer compile for which generation,
and which programs need another amount of HBM. Nothing is executed. The program is one chip's.
"""

from collections.abc import Callable
from typing import Any

import pytest

from harness.lanes.aot.case_compiler import CaseCompiler
from harness.lanes.aot.compiler import RefusedError
from suites.multislice_flash_attention.abstract import Shapes, summed

pytestmark = [
    pytest.mark.lanes("tpu-aot"),
    pytest.mark.topologies("v5e:2x2", "v5p:2x2x1", "v6e:2x2", "tpu7x:2x2x1"),
    pytest.mark.upstream("pytorch/xla#8850"),
]


@pytest.mark.parametrize("width", [64, 128, 256])
@pytest.mark.parametrize("length", [1024, 8192])
def test_flash_attention(
    xla_compiler: CaseCompiler, abstract: Shapes, length: int, width: int
) -> None:
    """Forward, causal, for 8 heads: one kernel."""
    from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention

    x = abstract(1, 8, length, width)
    compiled = xla_compiler.jax(lambda q, k, v: flash_attention(q, k, v, causal=True), x, x, x)
    assert compiled.program.kernels == 1


@pytest.mark.parametrize("width", [64, 128, 256])
def test_flash_attention_backward(xla_compiler: CaseCompiler, abstract: Shapes, width: int) -> None:
    """One kernel forward, and one each for the gradients of keys and queries."""
    from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention

    x = abstract(1, 8, 1024, width)
    gradients = summed(lambda q, k, v: flash_attention(q, k, v, causal=True))
    assert xla_compiler.jax(gradients, x, x, x).program.kernels == 3


def splash(heads: int, length: int) -> Callable[..., Any]:
    """Causal splash attention in which all query heads share one head of keys, or groups do."""
    import jax
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernel
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    mask = masks.MultiHeadMask([masks.CausalMask((length, length))] * heads)
    return jax.vmap(kernel.make_splash_mqa_single_device(mask))


@pytest.mark.upstream("pytorch/xla#8954")
@pytest.mark.parametrize("kv_heads", [1, 8])
@pytest.mark.parametrize("length", [1024, 8192])
def test_splash_attention(
    xla_compiler: CaseCompiler, abstract: Shapes, length: int, kv_heads: int
) -> None:
    """Grouped queries: four query heads for each head of keys and values; one kernel."""
    q, k = abstract(kv_heads, 4, length, 128), abstract(kv_heads, length, 128)
    assert xla_compiler.jax(splash(4, length), q, k, k).program.kernels == 1


@pytest.mark.upstream("pytorch/xla#8954")
def test_splash_attention_backward(xla_compiler: CaseCompiler, abstract: Shapes) -> None:
    q, k = abstract(8, 4, 1024, 128), abstract(8, 1024, 128)
    assert xla_compiler.jax(summed(splash(4, 1024)), q, k, k).program.kernels == 3


@pytest.mark.parametrize("kv_heads", [1, 8])
def test_paged_attention(xla_compiler: CaseCompiler, abstract: Shapes, kv_heads: int) -> None:
    """Decoding 8 sequences of up to 2048 tokens in pages of 16, with 32 query heads."""
    from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention

    def attention(*arrays: Any) -> Any:
        return paged_attention(*arrays, pages_per_compute_block=8)

    pages = abstract(kv_heads, 1024, 16, 128)
    compiled = xla_compiler.jax(
        attention,
        abstract(8, 32, 128),
        pages,
        pages,
        abstract(8, dtype="int32"),
        abstract(8, 128, dtype="int32"),
    )
    assert compiled.program.kernels == 1


@pytest.mark.upstream("pytorch/xla#8334")
@pytest.mark.parametrize("rows", [512, 4096])
def test_grouped_matmul(xla_compiler: CaseCompiler, abstract: Shapes, rows: int) -> None:
    """Eight experts of 1024 × 2048."""
    from jax.experimental.pallas.ops.tpu.megablox import gmm

    def product(*arrays: Any) -> Any:
        return gmm(*arrays, preferred_element_type="bfloat16", tiling=(512, 512, 512))

    sizes = abstract(8, dtype="int32")
    compiled = xla_compiler.jax(product, abstract(rows, 1024), abstract(8, 1024, 2048), sizes)
    assert compiled.program.kernels == 1


@pytest.mark.long
def test_kernel_that_does_not_fit_is_refused(xla_compiler: CaseCompiler, abstract: Shapes) -> None:
    """A copy of 256 MiB in one block, which no generation's VMEM holds; one of 1 MiB compiles."""
    import jax
    from jax.experimental import pallas as pl

    def copy(x: Any, out: Any) -> None:
        out[...] = x[...]

    def call(x: Any) -> Any:
        return pl.pallas_call(copy, jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    assert xla_compiler.jax(call, abstract(512, 1024)).program.kernels == 1
    with pytest.raises(RefusedError) as refused:
        xla_compiler.jax(call, abstract(16384, 8192))
    assert str(refused.value).startswith("RESOURCE_EXHAUSTED")  # the status, not libtpu's words
