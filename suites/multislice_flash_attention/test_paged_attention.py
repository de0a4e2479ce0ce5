"""Paged attention by torch_xla: of one token a sequence, of several, and of ragged sequences."""

import numpy as np
import pytest
import torch
import torch_xla

from harness.session.fixtures import StartRuntime
from suites.multislice_flash_attention import ragged
from suites.multislice_flash_attention.paged import TOLERANCE, Cache, expected, inputs
from suites.shared.jax_releases import needs_tpu_interpret_mode

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("2x1"),
    pytest.mark.upstream("pytorch/xla#8850"),
]


def on_tpu(cache: Cache) -> torch.Tensor:
    from torch_xla.experimental.custom_kernel import paged_attention

    return paged_attention(
        *(t.to(torch_xla.device()) for t in inputs(cache)),
        pages_per_compute_block=2,
        attn_logits_soft_cap=cache.soft_cap,
    )


def assert_numbers(cache: Cache, *, rounding: float = 0.0) -> None:
    result = on_tpu(cache).cpu().double()
    atol = TOLERANCE["atol"] + rounding
    torch.testing.assert_close(result, expected(cache), rtol=TOLERANCE["rtol"], atol=atol)


@pytest.mark.parametrize("kv_heads", [1, 2, 8])
def test_grouped_queries(start_runtime: StartRuntime, kv_heads: int) -> None:
    """8, 4 and 1 query heads for each key head: the kernel has two layouts."""
    start_runtime(spmd=False)
    assert_numbers(Cache(kv_heads=kv_heads))


def test_bfloat16(start_runtime: StartRuntime) -> None:
    """The result is rounded to bfloat16: 2**-9 of numbers below 4."""
    start_runtime(spmd=False)
    assert_numbers(Cache(dtype=torch.bfloat16), rounding=2**-7)


def test_soft_cap(start_runtime: StartRuntime) -> None:
    start_runtime(spmd=False)
    assert_numbers(Cache(soft_cap=0.5))


def test_full_and_short_sequences(start_runtime: StartRuntime) -> None:
    start_runtime(spmd=False)
    assert_numbers(Cache(lengths=(32, 1)))


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_dtype_of_the_result(start_runtime: StartRuntime, kv_heads: int) -> None:
    """It is the queries', as in JAX."""
    start_runtime(spmd=False)
    dtype = on_tpu(Cache(kv_heads=kv_heads, dtype=torch.bfloat16)).dtype
    assert dtype == torch.bfloat16


BATCHES = pytest.mark.parametrize("batch", ragged.BATCHES.values(), ids=ragged.BATCHES)


def ragged_on_tpu(batch: ragged.Batch, **options: object) -> np.ndarray:
    from torch_xla.experimental.custom_kernel import ragged_paged_attention

    given = [torch.from_numpy(array).to(torch_xla.device()) for array in ragged.arguments(batch)]
    result = ragged_paged_attention(
        *given,
        sm_scale=ragged.Batch.SCALE,
        sliding_window=batch.window,
        soft_cap=batch.soft_cap,
        **options,
    )
    return result.cpu().numpy()[: sum(batch.new)]


@needs_tpu_interpret_mode
@pytest.mark.deadline(60)
@BATCHES
def test_ragged(start_runtime: StartRuntime, batch: ragged.Batch) -> None:
    """The kernel copies pages itself, while it computes: only JAX's TPU interpret mode has that."""
    start_runtime(spmd=False)
    result = ragged_on_tpu(batch, num_kv_pages_per_block=2, num_queries_per_block=8)
    ragged.assert_close(result, batch)


@BATCHES
def test_ragged_without_the_kernel(start_runtime: StartRuntime, batch: ragged.Batch) -> None:
    """torch_xla's own plain-PyTorch way computes it."""
    start_runtime(spmd=False)
    result = ragged_on_tpu(batch, use_kernel=False)
    ragged.assert_close(result, batch)


def assert_multi_query(kv_heads: int, *, use_kernel: bool, padded: bool = False) -> None:
    """Compare with NumPy. If ``padded``, the last sequence of the batch has no token."""
    from torch_xla.experimental.custom_kernel import multi_queries_paged_attention

    soft_cap = 0.7 if kv_heads > 1 else None
    batch = ragged.Batch((8, 5), (20, 128), kv_heads=kv_heads, soft_cap=soft_cap, pages=8)
    q, pages, lengths, order, ends, _ = ragged.arguments(batch)
    rows = np.concatenate([np.arange(8), ends[1] + np.arange(8) % batch.new[1]])  # 3 of no token
    keys, values = (pages[:, :, n::2].transpose(2, 0, 1, 3) for n in (0, 1))
    given = [
        q[rows].reshape(2, 8, batch.heads, ragged.Batch.WIDTH) * ragged.Batch.SCALE,
        *(np.ascontiguousarray(array) for array in (keys, values)),
        lengths,
        order,
        np.array(batch.new, np.int32),
    ]
    if padded:
        for n in (0, 3, 4, 5):
            given[n] = np.insert(given[n], 2, 0, axis=0)
    result = multi_queries_paged_attention(
        *(torch.from_numpy(array).to(torch_xla.device()) for array in given),
        num_kv_pages_per_compute_block=8,
        num_queries_per_compute_block=8,
        use_kernel=use_kernel,
        attn_logits_soft_cap=soft_cap,
    )
    output = result.cpu().numpy()[:2].reshape(16, batch.heads, ragged.Batch.WIDTH)
    ragged.assert_close(output[: sum(batch.new)], batch)


@needs_tpu_interpret_mode
@pytest.mark.deadline(60)
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_multi_query(start_runtime: StartRuntime, kv_heads: int) -> None:
    """As many new tokens of each sequence."""
    start_runtime(spmd=False)
    assert_multi_query(kv_heads, use_kernel=True)


@needs_tpu_interpret_mode
@pytest.mark.deadline(60)
def test_multi_query_of_a_padded_batch(start_runtime: StartRuntime) -> None:
    """The last sequence is empty, so that no length is read behind the last one."""
    start_runtime(spmd=False)
    assert_multi_query(1, use_kernel=True, padded=True)


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_multi_query_without_the_kernel(start_runtime: StartRuntime, kv_heads: int) -> None:
    """torch_xla's own plain-PyTorch way computes it."""
    start_runtime(spmd=False)
    assert_multi_query(kv_heads, use_kernel=False)
