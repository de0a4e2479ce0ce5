"""Ragged paged attention: sequences with any number of new tokens each, in one array, in NumPy."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Batch:
    """Sequences, some of which are at their beginning and some of which add one token.

    Attributes:
        new: the new tokens of each sequence, which are its last ones.
        lengths: all tokens of each sequence.
        heads: of queries; ``kv_heads`` is that of keys and of values.
        window: how many of the last tokens each token sees; all, if None.
        soft_cap: of the scores; none, if None.
        pages: of each sequence, of 16 tokens each.
    """

    new: tuple[int, ...] = (8, 1, 5)
    lengths: tuple[int, ...] = (8, 20, 29)
    heads: int = 4
    kv_heads: int = 2
    window: int | None = None
    soft_cap: float | None = None
    pages: int = 2

    PAGE = 16
    WIDTH = 128
    SCALE = 0.5

    @property
    def tokens(self) -> int:
        """New ones of all sequences, filled up to whole blocks of 8."""
        return -(-sum(self.new) // 8) * 8


BATCHES = {
    "mixed": Batch(),
    "one-each": Batch(new=(1, 1, 1), lengths=(32, 1, 17)),
    "prefill": Batch(new=(16, 16), lengths=(16, 32)),
    "one-kv-head": Batch(heads=8, kv_heads=1),
    "window": Batch(window=6),
    "soft-cap": Batch(soft_cap=0.7),
}


def arguments(batch: Batch) -> tuple[Floats, Floats, Ints, Ints, Ints, Ints]:
    """Return queries, pages, lengths, page indices, where queries end, and the sequences' number.

    Shapes are [tokens, heads, width], [pages, 16, 2 * kv_heads, width] with keys and values in
    turn, [sequences], [sequences, pages], [sequences + 1] and [1]. Pages are in random order.
    """
    random = np.random.default_rng(8850)
    sequences = len(batch.new)
    q = random.standard_normal((batch.tokens, batch.heads, Batch.WIDTH), np.float32)
    q *= 0.25
    shape = sequences * batch.pages, Batch.PAGE, 2 * batch.kv_heads, Batch.WIDTH
    pages = random.standard_normal(shape, np.float32)
    order = random.permutation(shape[0]).reshape(sequences, batch.pages)
    ends = np.cumsum([0, *batch.new])
    lengths, count = np.array(batch.lengths, np.int32), np.array([sequences], np.int32)
    return q, pages, lengths, order.astype(np.int32), ends.astype(np.int32), count


def expected(batch: Batch) -> npt.NDArray[np.float64]:
    """Return softmax attention by sequence and head: [new tokens, heads, width]."""
    q, pages, _, order, ends, _ = arguments(batch)
    results = []
    for n, (new, length) in enumerate(zip(batch.new, batch.lengths, strict=True)):
        cache = pages[order[n]].reshape(-1, 2 * batch.kv_heads, Batch.WIDTH)[:length]
        queries = q[ends[n] : ends[n + 1]].astype(np.float64)
        ahead = np.arange(length) - np.arange(length - new, length)[:, None]
        seen = ahead <= 0
        if batch.window is not None:
            seen &= ahead > -batch.window
        whole = np.empty((new, batch.heads, Batch.WIDTH))
        for head in range(batch.heads):
            own = head // (batch.heads // batch.kv_heads)
            keys, values = (cache[:, 2 * own + m].astype(np.float64) for m in (0, 1))
            scores = queries[:, head] @ keys.T * Batch.SCALE
            if batch.soft_cap is not None:
                scores = batch.soft_cap * np.tanh(scores / batch.soft_cap)
            weights = np.where(seen, np.exp(scores - scores.max(-1, keepdims=True)), 0)
            whole[:, head] = weights / weights.sum(-1, keepdims=True) @ values
        results.append(whole)
    return np.concatenate(results)


def assert_close(result: npt.NDArray[np.float32], batch: Batch) -> None:
    """Compare with tolerances for kernels that multiply and sum in float32."""
    np.testing.assert_allclose(result, expected(batch), rtol=1e-4, atol=1e-4)
