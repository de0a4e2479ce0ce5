"""Paged attention by torch_xla, and the kernels that a virtual TPU can't interpret."""

import pytest
import torch
import torch_xla  # noqa: F401 - without it there is nothing to ask

from harness.session.fixtures import StartRuntime
from suites.multislice_flash_attention.paged import TOLERANCE, Cache, expected, inputs

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("2x1"),
    pytest.mark.upstream("pytorch/xla#8850"),
]


def on_tpu(cache: Cache) -> torch.Tensor:
    from torch_xla.experimental.custom_kernel import paged_attention

    return paged_attention(
        *(t.to("xla") for t in inputs(cache)),
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
    found = on_tpu(Cache(kv_heads=kv_heads, dtype=torch.bfloat16)).dtype
    assert found == torch.bfloat16


def ints(*values: int | list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32).to("xla")


@pytest.mark.deadline(30)
def test_ragged_is_refused_by_the_virtual_tpu(start_runtime: StartRuntime) -> None:
    """JAX can't interpret its kernel: the error names the kernel and says why."""
    start_runtime(spmd=False)
    from torch_xla.experimental.custom_kernel import ragged_paged_attention

    q, pages = torch.randn(8, 2, 128).to("xla"), torch.randn(4, 16, 4, 128).to("xla")
    result = ragged_paged_attention(
        q,
        pages,
        ints(8),
        ints([0, 1]),
        ints(0, 8),
        ints(1),
        num_kv_pages_per_block=2,
        num_queries_per_block=8,
    )
    with pytest.raises(
        RuntimeError,
        match=r"Pallas kernel 'ragged_paged_attention_kernel' can't be interpreted .*: in \w*while",
    ):
        result.cpu()


@pytest.mark.deadline(30)
def test_multi_query_is_refused_by_the_virtual_tpu(start_runtime: StartRuntime) -> None:
    """As above; this kernel asks for its place in the grid where JAX's interpreter can't tell."""
    start_runtime(spmd=False)
    from torch_xla.experimental.custom_kernel import multi_queries_paged_attention

    q, pages = torch.randn(1, 8, 2, 128).to("xla"), torch.randn(2, 8, 32, 128).to("xla")
    result = multi_queries_paged_attention(
        q,
        pages,
        pages,
        ints(20),
        ints([0, 1, 2, 3]),
        ints(8),
        num_kv_pages_per_compute_block=4,
        num_queries_per_compute_block=8,
    )
    with pytest.raises(
        RuntimeError,
        match=r"Pallas kernel 'paged_flash_attention_kernel' can't be interpreted .*program_id",
    ):
        result.cpu()


def test_ragged_without_the_kernel(start_runtime: StartRuntime) -> None:
    """torch_xla's own plain-PyTorch way computes it: one sequence, 8 new tokens of 8."""
    start_runtime(spmd=False)
    from torch_xla.experimental.custom_kernel import ragged_paged_attention

    random = torch.Generator().manual_seed(0)
    q = torch.randn(8, 2, 128, generator=random) / 4
    pages = torch.randn(4, 16, 4, 128, generator=random)
    arguments = q, pages, *(torch.tensor(t) for t in ([8], [[0, 1]], [0, 8], [1]))
    on_device = [t.to("xla", torch.int32 if t.dtype == torch.int64 else None) for t in arguments]
    result = ragged_paged_attention(*on_device, sm_scale=0.5, use_kernel=False)
    k, v = (pages[0, :8, n::2].double() for n in (0, 1))
    scores = torch.einsum("qhd,khd->hqk", q.double(), k) * 0.5
    scores = scores.masked_fill(torch.ones(8, 8, dtype=torch.bool).triu(1), -torch.inf)
    oracle = torch.einsum("hqk,khd->qhd", torch.softmax(scores, -1), v)
    torch.testing.assert_close(result.cpu().double(), oracle, rtol=1e-4, atol=1e-4)
