"""The kernels of tokamax and MaxText, as PyPI has them, compiled by libtpu at the shapes of models.

Before an upgrade of jax, of libtpu or of such a package it shows which kernels no longer compile.
Nothing is executed, and the program is one device's. The stacks ``jax-...-kernels`` have both
packages; on another one what is missing is why a case is skipped. tpu-inference is not among them:
its kernels import vllm, which it does not require.
"""

from typing import Any

import pytest

from harness.lanes.aot.case_compiler import CaseCompiler
from suites.multislice_flash_attention.abstract import Shapes, summed

pytestmark = [
    pytest.mark.lanes("tpu-aot"),
    pytest.mark.topologies("v5e:2x2", "v5p:2x2x1", "v6e:2x2", "tpu7x:2x2x1"),
    pytest.mark.upstream("vllm-project/tpu-inference#1425"),
]


@pytest.fixture
def tokamax() -> Any:
    return pytest.importorskip("tokamax")


def maxtext(module: str) -> Any:
    return pytest.importorskip(f"maxtext.kernels.{module}")


@pytest.mark.parametrize("width", [128, 256])
@pytest.mark.parametrize("length", [1024, 8192])
def test_attention_of_tokamax(
    xla_compiler: CaseCompiler, abstract: Shapes, tokamax: Any, length: int, width: int
) -> None:
    """Forward, causal, for 8 heads: one kernel."""
    x = abstract(1, length, 8, width)
    compiled = xla_compiler.jax(attention_of(tokamax), x, x, x)
    assert compiled.program.kernels == 1


def test_attention_of_tokamax_backward(
    xla_compiler: CaseCompiler, abstract: Shapes, tokamax: Any
) -> None:
    """One kernel forward, and one for all gradients."""
    x = abstract(1, 1024, 8, 128)
    assert xla_compiler.jax(summed(attention_of(tokamax)), x, x, x).program.kernels == 2


def attention_of(tokamax: Any) -> Any:
    def attention(*qkv: Any) -> Any:
        return tokamax.dot_product_attention(*qkv, is_causal=True, implementation="mosaic_tpu")

    return attention


@pytest.mark.parametrize("implementation", ["mosaic_tpu", "mosaic_tpu_v2"])
def test_ragged_dot_of_tokamax(
    xla_compiler: CaseCompiler, abstract: Shapes, tokamax: Any, implementation: str
) -> None:
    """Eight experts of 1024 × 2048, which share 4096 rows."""

    def product(*arrays: Any) -> Any:
        return tokamax.ragged_dot(*arrays, implementation=implementation)

    sizes = abstract(8, dtype="int32")
    compiled = xla_compiler.jax(product, abstract(4096, 1024), abstract(8, 1024, 2048), sizes)
    assert compiled.program.kernels == 1


def test_cross_entropy_of_tokamax(
    xla_compiler: CaseCompiler, abstract: Shapes, tokamax: Any
) -> None:
    """The last layer and its loss in one kernel, for 4096 words."""

    def loss(*arrays: Any) -> Any:
        return tokamax.linear_softmax_cross_entropy_loss(*arrays, implementation="mosaic_tpu")

    x, labels, weights = abstract(1024, 512), abstract(1024, dtype="int32"), abstract(512, 4096)
    assert xla_compiler.jax(loss, x, labels, weights).program.kernels == 1


@pytest.mark.parametrize("heads", [8, 32])
def test_ragged_attention_of_maxtext(
    xla_compiler: CaseCompiler, abstract: Shapes, heads: int
) -> None:
    """Decoding 8 sequences of up to 2048 tokens, with 8 heads of keys."""
    kernel = maxtext("attention.ragged_attention")
    q, k, lengths = (
        abstract(8, 1, heads, 128),
        abstract(8, 2048, 8, 128),
        abstract(8, dtype="int32"),
    )
    assert xla_compiler.jax(kernel.ragged_gqa, q, k, k, lengths).program.kernels == 1


def test_splash_attention_of_maxtext(xla_compiler: CaseCompiler, abstract: Shapes) -> None:
    kernel = maxtext("tokamax_splash_attention.splash_attention_kernel")
    masks = maxtext("tokamax_splash_attention.splash_attention_mask")
    splash = kernel.make_splash_mha_single_device(masks.CausalMask((1024, 1024)))
    x = abstract(8, 1024, 128)
    assert xla_compiler.jax(splash, x, x, x).program.kernels == 1


@pytest.mark.topologies("tpu7x:2x2x1")  # for whose SparseCores it is written
def test_gather_of_maxtext_on_sparse_core(xla_compiler: CaseCompiler, abstract: Shapes) -> None:
    """The rows of 8 experts for each of 4096 tokens, gathered and summed by the SparseCores."""
    kernel = maxtext("gather_reduce_pallas")

    def gathered(rows: Any, index: Any) -> Any:
        return kernel.sc_gather_reduce(rows, index, reduce_group_size=8)

    compiled = xla_compiler.jax(gathered, abstract(4096, 7168), abstract(32768, dtype="int32"))
    assert compiled.program.kernels == 1
