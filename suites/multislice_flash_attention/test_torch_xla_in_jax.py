"""The kernels that torch_xla brings along are JAX's functions: called so, with each option."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch_xla  # noqa: F401 - stacks of JAX alone do not have it

from suites.multislice_flash_attention import ragged
from suites.shared.jax_releases import needs_tpu_interpret_mode
from suites.shared.torch_xla_releases import since_2_9

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("v6e:1x1"),
    pytest.mark.upstream("pytorch/xla#8850"),
    pytest.mark.deadline(60),
    pytest.mark.skipif(
        jax.__version_info__ >= (0, 7, 2), reason="torch_xla 2.9 uses what jax 0.7.2 removed"
    ),
    since_2_9,
]
# Rows, columns and depth of blocks, and whether x is quantized, too.
BLOCKS: dict[str, tuple[tuple[int, int, int], bool]] = {
    "whole": ((128, 256, 256), False),
    "depth": ((128, 256, 128), False),
    "quantized": ((128, 256, 256), True),
    "quantized-columns": ((128, 128, 256), True),
    "quantized-depth": ((128, 256, 128), True),
}


def _kernels(name: str) -> Any:
    """Return the module of these kernels; skip the case on a release that has none."""
    return pytest.importorskip(f"torch_xla.experimental.pallas_kernels.{name}")


@pytest.mark.long
def test_quantized_matmul(subtests: pytest.Subtests) -> None:
    """A product with int8, in blocks that do not divide any of the sizes."""
    kernels = _kernels("quantized_matmul_kernel")
    random = np.random.default_rng(8)
    x = random.standard_normal((130, 200), np.float32)
    w = random.integers(-127, 128, (250, 200)).astype(np.int8)
    scale = random.random(250, np.float32) + 0.5
    exact = x.astype(np.float64) @ w.T * scale
    step = np.abs(x).max(1, keepdims=True) / 127
    rounding = step / 2 * np.abs(w.astype(np.int64)).sum(1) * scale
    for name, ((rows, columns, depth), quantized) in BLOCKS.items():
        with subtests.test(name):
            result = kernels.quantized_matmul_int8(
                x,
                w,
                scale,
                quantize_activation=quantized,
                batch_block_size=rows,
                out_block_size=columns,
                in_block_size=depth,
            )
            error = np.abs(np.asarray(result) - exact)
            assert result.shape == exact.shape
            assert (error <= (rounding if quantized else 1e-4 * np.abs(exact) + 1e-2)).all()
            # Rounding each way by chance is far less than always as much as it may.
            assert not quantized or (error < rounding / 3).mean() > 0.95


def test_tuned_blocks() -> None:
    """Sizes that were tuned for this generation; none for others."""
    matmul, attention = _kernels("quantized_matmul_kernel"), _kernels("ragged_paged_attention_v2")
    jax.block_until_ready(jnp.ones(2))
    assert matmul.get_tpu_version() == attention.get_tpu_version() == 6
    table = {(6, 8, 16, 32, "bfloat16", True): (8, 16, 32)}
    assert matmul.get_tuned_block_sizes(table, 8, 16, 32, "bfloat16", True) == (8, 16, 32)
    assert matmul.get_tuned_block_sizes(table, 8, 16, 32, "bfloat16", False) == (None,) * 3
    assert [attention.next_power_of_2(n) for n in (1, 2, 3, 4, 5, 1000)] == [1, 2, 4, 4, 8, 1024]
    assert [attention.get_min_page_size(n) for n in (1024, 32768)] == [64, 2048]
    assert attention.get_device_name().startswith("TPU v6")
    assert attention.get_device_name(4).endswith("-4")
    small = jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.bfloat16), 8, 4, 128, 16
    assert attention.get_tuned_block_sizes(*small, 32, 2) == (2, 32)
    assert attention.get_tuned_block_sizes(*small, 16, 4096) == (128, 16)
    large = jnp.dtype(jnp.float32), jnp.dtype(jnp.float32), 64, 32, 128, 128
    pages, queries = attention.get_tuned_block_sizes(*large, 64, 4096)
    bytes_of_pages = 2 * pages * 128 * 2 * 32 * 128 * 4
    assert queries == 32
    assert 16 * 2**20 <= bytes_of_pages < 64 * 2**20


BATCHES: dict[str, tuple[ragged.Batch, Any, dict[str, Any]]] = {
    "bfloat16": (ragged.Batch(), jnp.bfloat16, {}),
    "scaled": (
        ragged.Batch(new=(8, 1), lengths=(8, 20), heads=8),
        jnp.float32,
        {"k_scale": 0.5, "v_scale": 2.0, "num_kv_pages_per_block": 1, "num_queries_per_block": 8},
    ),
}


@pytest.mark.long
@needs_tpu_interpret_mode
@pytest.mark.parametrize("name", BATCHES)
def test_ragged(name: str) -> None:
    """Blocks of its own choice, numbers of two bytes, and pages whose numbers are scaled."""
    attention = _kernels("ragged_paged_attention_v2")
    batch, dtype, options = BATCHES[name]
    q, pages, *rest = ragged.arguments(batch)
    pages[:, :, 0::2] /= options.get("k_scale", 1.0)
    pages[:, :, 1::2] /= options.get("v_scale", 1.0)
    given = (jnp.asarray(q, dtype), jnp.asarray(pages, dtype), *map(jnp.asarray, rest))
    common = {"sm_scale": ragged.Batch.SCALE}
    result = attention.ragged_paged_attention(*given, **common, **options)
    scales = {n: v for n, v in options.items() if n.endswith("scale")}
    plain = attention.ref_ragged_paged_attention(*given, **common, **scales)
    near = 1e-4 if dtype == jnp.float32 else 5e-2
    for value in (result, plain):
        got = np.asarray(value, np.float32)[: sum(batch.new)]
        np.testing.assert_allclose(got, ragged.expected(batch), rtol=near, atol=near)


WRONG: dict[str, tuple[dict[int, Any], str]] = {
    "sequences": ({5: [4]}, "must be less or equal to max_num_seqs=3"),
    "pages": ({2: [8, 20, 33]}, "pages_per_seq=2 must be greater or equal to"),
    "tokens": ({4: [0, 8, 9, 17]}, "must be less or equal to max_num_batched_tokens=16"),
    "queries": ({2: [7, 20, 29]}, "must be less or equal to kv_len="),
}


@pytest.mark.long
def test_refused_sequences(subtests: pytest.Subtests) -> None:
    attention = _kernels("ragged_paged_attention_v2")
    for name, (changed, message) in WRONG.items():
        given = [jnp.asarray(array) for array in ragged.arguments(ragged.Batch())]
        for place, values in changed.items():
            given[place] = jnp.asarray(values, jnp.int32)
        with subtests.test(name), pytest.raises(ValueError, match=message):
            attention.dynamic_validate_inputs(
                *given,
                sliding_window=None,
                soft_cap=None,
                mask_value=None,
                num_kv_pages_per_block=None,
                num_queries_per_block=None,
                vmem_limit_bytes=None,
                sm_scale=1.0,
            )
