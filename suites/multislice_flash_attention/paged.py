"""Paged attention problems: keys and values in pages of a cache that sequences share."""

from dataclasses import dataclass

import torch

# JAX's kernel rounds keys and values to bfloat16, and so does the oracle; the rest is float32.
TOLERANCE = {"rtol": 1e-3, "atol": 1e-4}


@dataclass(frozen=True)
class Cache:
    """One query token for each of ``lengths``; pages of 16 tokens, 2 for each sequence."""

    lengths: tuple[int, ...] = (20, 32)
    heads: int = 8
    kv_heads: int = 1
    dtype: torch.dtype = torch.float32
    soft_cap: float | None = None

    PAGE = 16
    PAGES = 2
    WIDTH = 128


def inputs(cache: Cache) -> tuple[torch.Tensor, ...]:
    """Host tensors: queries, pages of keys, of values, lengths, page indices in random order."""
    random = torch.Generator().manual_seed(8850)
    sequences = len(cache.lengths)
    pages = (cache.kv_heads, sequences * Cache.PAGES, Cache.PAGE, Cache.WIDTH)
    q = torch.randn(sequences, cache.heads, Cache.WIDTH, generator=random) / 4
    k, v = (torch.randn(pages, generator=random) for _ in range(2))
    order = torch.randperm(sequences * Cache.PAGES, generator=random)
    indices = order.reshape(sequences, Cache.PAGES).int()
    tensors = [t.to(cache.dtype) for t in (q, k, v)]
    return (*tensors, torch.tensor(cache.lengths, dtype=torch.int32), indices)


def expected(cache: Cache) -> torch.Tensor:
    """[sequences, heads, width] in float64, sequence by sequence."""
    q, k, v, _, indices = inputs(cache)
    group = cache.heads // cache.kv_heads

    def tokens(pages: torch.Tensor, row: torch.Tensor, length: int) -> torch.Tensor:
        own = pages.bfloat16().double()[:, row].reshape(cache.kv_heads, -1, Cache.WIDTH)
        return own[:, :length].repeat_interleave(group, dim=0)

    rows = []
    for query, row, length in zip(q.double(), indices, cache.lengths, strict=True):
        scores = tokens(k, row, length) @ query[..., None]
        if cache.soft_cap is not None:
            scores = cache.soft_cap * torch.tanh(scores / cache.soft_cap)
        weights = torch.softmax(scores[..., 0], dim=-1)
        rows.append((weights[:, None] @ tokens(v, row, length))[:, 0])
    return torch.stack(rows)
