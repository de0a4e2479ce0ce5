"""torch_xla's multi-query paged attention kernel, called from JAX, with copies made at once.

On a device the kernel waits for the wrong copies and reads past its lengths, which findings.md has
as multi-query-attention-shares-a-semaphore and multi-query-attention-reads-past-its-lengths. JAX's
TPU interpret mode can make each copy when it starts and let a read end anywhere, so that only what
the kernel computes is checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
import pytest
from jax.experimental.pallas import tpu as pltpu

from harness.session.fixtures import StartRuntime
from suites.shared.jax_releases import needs_tpu_interpret_mode

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("1"),
    pytest.mark.upstream("pytorch/xla#8850"),
    pytest.mark.deadline(60),
    needs_tpu_interpret_mode,
]


@dataclass(frozen=True)
class Sequences:
    """Sequences that share pages of keys and values, with their last tokens as queries.

    Attributes:
        lengths: all tokens of each sequence.
        new: how many of them are queries.
        queries: places for queries of each sequence.
        heads: of queries; ``kv_heads`` is that of keys and of values.
        width: of each head.
        page: tokens of a page.
        pages: of each sequence.
        cap: of the scores; none, if None.
    """

    lengths: tuple[int, ...]
    new: tuple[int, ...]
    queries: int
    heads: int = 2
    kv_heads: int = 1
    width: int = 128
    page: int = 128
    pages: int = 2
    cap: float | None = None

    def arguments(self) -> tuple[np.ndarray, ...]:
        """Return queries, pages of keys and of values, lengths, the sequences' pages, and new."""
        random = np.random.default_rng(8850)
        count = len(self.lengths)
        q = random.standard_normal((count, self.queries, self.heads, self.width), np.float32) / 8
        shape = self.kv_heads, count * self.pages, self.page, self.width
        k, v = (random.integers(-8, 9, shape).astype(np.float32) / 8 for _ in range(2))
        places = random.permutation(count * self.pages).reshape(count, self.pages)
        lengths, new = (np.array(each, np.int32) for each in (self.lengths, self.new))
        return q, k, v, lengths, places.astype(np.int32), new

    def expected(self, row: int) -> npt.NDArray[np.float64]:
        """Return softmax attention of one sequence's queries: [new, heads, width]."""
        q, k, v, _, places, _ = self.arguments()
        length, new = self.lengths[row], self.new[row]
        later = np.arange(length) > np.arange(length - new, length)[:, None]
        attended = np.empty((new, self.heads, self.width))
        for head in range(self.heads):
            own = head * self.kv_heads // self.heads
            keys, values = (
                pages[own, places[row]].reshape(-1, self.width)[:length].astype(np.float64)
                for pages in (k, v)
            )
            scores = q[row, :new, head] @ keys.T
            if self.cap is not None:
                scores = self.cap * np.tanh(scores / self.cap)
            weights = np.exp(np.where(later, -np.inf, scores))
            attended[:, head] = weights / weights.sum(-1, keepdims=True) @ values
        return attended


def attention(sequences: Sequences, **blocks: Any) -> np.ndarray:
    """Return the kernel's result: [sequences, queries, heads, width]."""
    from torch_xla.experimental.pallas_kernels import multi_queries_paged_attention_kernel as own

    at_once = pltpu.InterpretParams(dma_execution_mode="eager", out_of_bounds_reads="uninitialized")
    with pltpu.force_tpu_interpret_mode(at_once):
        result = own.paged_attention(
            *sequences.arguments(), attn_logits_soft_cap=sequences.cap, **blocks
        )
    return np.asarray(result)


CASES: dict[str, tuple[Sequences, dict[str, int]]] = {
    # The first block of queries ends at the first token of the second block of keys, or before it.
    "blocks": (
        Sequences((137, 0, 130), (16, 0, 10), 16, heads=4, kv_heads=2, page=64, pages=4),
        {"num_kv_pages_per_compute_block": 2, "num_queries_per_compute_block": 8},
    ),
    "narrow": (
        Sequences((8, 21, 128), (8, 5, 1), 8, heads=2, width=64, pages=1, cap=0.5),
        {"num_kv_pages_per_compute_block": 1, "num_queries_per_compute_block": 8},
    ),
    "wide": (
        Sequences((200, 77), (4, 2), 4, heads=1, width=256),
        {"num_kv_pages_per_compute_block": 1},
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_attention(name: str) -> None:
    """Keys and values are whole eighths, which the kernel's bfloat16 keeps; weights are rounded."""
    sequences, blocks = CASES[name]
    result = attention(sequences, **blocks)
    assert result.shape == sequences.arguments()[0].shape
    for row, new in enumerate(sequences.new):
        np.testing.assert_allclose(result[row, :new], sequences.expected(row), atol=2e-3, rtol=0)


def test_keys_in_float32_and_values_in_bfloat16(start_runtime: StartRuntime) -> None:
    """torch_xla's operator, whose keys arrive before the wait for them ends: they are larger.

    There is one block of each, so the kernel copies nothing else meanwhile.
    """
    import torch
    import torch_xla
    from torch_xla.experimental.custom_kernel import multi_queries_paged_attention

    start_runtime(spmd=False)
    sequences = Sequences((0, 100, 0), (0, 8, 0), 8, pages=1)
    q, k, v, *numbers = (torch.from_numpy(array) for array in sequences.arguments())
    result = multi_queries_paged_attention(
        *(t.to(torch_xla.device()) for t in (q, k, v.bfloat16(), *numbers)),
        num_kv_pages_per_compute_block=1,
        num_queries_per_compute_block=8,
    )
    assert result.dtype == torch.float32
    attended = result[1].cpu().numpy()
    np.testing.assert_allclose(attended, sequences.expected(1), atol=2e-3, rtol=0)


def test_wrong_arguments_are_refused(subtests: pytest.Subtests) -> None:
    from torch_xla.experimental.pallas_kernels import multi_queries_paged_attention_kernel as own

    sequences = CASES["blocks"][0]
    arrays = [jax.device_put(array) for array in sequences.arguments()]
    q, k, v, lengths, places, new = arrays
    names = ("q", "k_pages", "v_pages", "lengths", "page_indices", "effective_q_lens")
    right: dict[str, Any] = dict(zip(names, arrays, strict=True)) | CASES["blocks"][1]
    wrong: dict[str, dict[str, Any]] = {
        "values of another shape": {"v_pages": v[:, :8]},
        "another width": {"q": q[..., :64]},
        "too few lengths": {"lengths": lengths[:2]},
        "too few numbers of queries": {"effective_q_lens": new[:2]},
        "too few sequences of pages": {"page_indices": places[:2]},
        "lengths of 16 bits": {"lengths": lengths.astype(np.int16)},
        "a block of more queries": {"num_queries_per_compute_block": 17},
        "a block of more pages": {"num_kv_pages_per_compute_block": 5},
        "blocks that do not divide": {"num_kv_pages_per_compute_block": 3},
        "heads that do not divide": {"q": q[:, :, :3]},
    }
    unlike_tiles: dict[str, dict[str, Any]] = {
        "a block of 64 tokens": {"num_kv_pages_per_compute_block": 1},
        "a width of 192": {
            name: jax.numpy.concatenate([array, array[..., :64]], axis=-1)
            for name, array in {"q": q, "k_pages": k, "v_pages": v}.items()
        },
    }
    for name, options in wrong.items():
        with subtests.test(wrong=name), pytest.raises(ValueError):
            own.paged_attention(**right | options)
    for name, options in unlike_tiles.items():
        with subtests.test(wrong=name), pytest.raises(NotImplementedError, match="multiple of 128"):
            own.paged_attention(**right | options)
