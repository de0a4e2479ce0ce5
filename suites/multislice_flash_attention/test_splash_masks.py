"""JAX's splash attention under each of its masks, forward and backward, and what each mask is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pytest

from suites.shared.attention import Attention
from suites.shared.jax_releases import needs_tpu_interpret_mode

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("1"),
    pytest.mark.upstream("pytorch/xla#8850"),
    pytest.mark.deadline(60),
    needs_tpu_interpret_mode,
]
LENGTH = 256
SHAPE = (LENGTH, LENGTH)


@dataclass(frozen=True)
class MaskCase:
    """A mask: whether a query may see a key, JAX's class for it, and its array if JAX makes one."""

    rule: Callable[[int, int], bool]
    make: Callable[[Any], Any]  # of the module of masks
    array: Callable[[Any], Any] | None = None


MASKS = {
    "full": MaskCase(lambda q, k: True, lambda of: of.FullMask(SHAPE)),
    "causal": MaskCase(
        lambda q, k: k <= q,
        lambda of: of.CausalMask(SHAPE),
        lambda of: of.make_causal_mask(SHAPE),
    ),
    "causal-later": MaskCase(
        lambda q, k: k <= q + 40,
        lambda of: of.CausalMask(SHAPE, 40),
        lambda of: of.make_causal_mask(SHAPE, 40),
    ),
    "local": MaskCase(
        lambda q, k: q - 90 <= k <= q + 30,
        lambda of: of.LocalMask(SHAPE, (90, 30), 0),
        lambda of: of.make_local_attention_mask(SHAPE, (90, 30)),
    ),
    "local-left": MaskCase(lambda q, k: q - 90 <= k, lambda of: of.LocalMask(SHAPE, (90, None), 0)),
    "local-right": MaskCase(
        lambda q, k: k <= q + 30, lambda of: of.LocalMask(SHAPE, (None, 30), 0)
    ),
    "local-later": MaskCase(
        lambda q, k: q + 9 - 90 <= k <= q + 9 + 30,
        lambda of: of.LocalMask(SHAPE, (90, 30), 9),
        lambda of: of.make_local_attention_mask(SHAPE, (90, 30), offset=9),
    ),
    "chunked": MaskCase(
        lambda q, k: k <= q and q // 96 == k // 96,
        lambda of: of.ChunkedCausalMask(SHAPE, 96),
        lambda of: of.make_chunk_attention_mask(SHAPE, 96),
    ),
    "either": MaskCase(
        lambda q, k: k <= q or q - 90 <= k <= q + 30,
        lambda of: of.CausalMask(SHAPE) | of.LocalMask(SHAPE, (90, 30), 0),
    ),
    "both": MaskCase(
        lambda q, k: k <= q and q - 90 <= k,
        lambda of: of.CausalMask(SHAPE) & of.LocalMask(SHAPE, (90, None), 0),
    ),
}
BLOCKS = (
    *("block_q", "block_kv", "block_kv_compute", "block_q_dkv", "block_kv_dkv"),
    *("block_kv_dkv_compute", "block_q_dq", "block_kv_dq"),
)


def allowed(rule: Callable[[int, int], bool]) -> np.ndarray:
    """Return which key each query may see, pair by pair."""
    return np.array([[rule(q, k) for k in range(LENGTH)] for q in range(LENGTH)])


@pytest.mark.parametrize("name", MASKS)
def test_attention(subtests: pytest.Subtests, name: str) -> None:
    """The mask itself, then the result and the gradients, of blocks smaller than its parts."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernel
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    if name == "chunked" and not hasattr(masks, "ChunkedCausalMask"):
        pytest.skip("this release of JAX has no such mask")
    case = MASKS[name]
    mask, may = case.make(masks), allowed(case.rule)
    for part in ((slice(None), slice(None)), (slice(32, 96), slice(128, 256))):
        with subtests.test(part=part):
            np.testing.assert_array_equal(mask[part], may[part])
    with subtests.test("equal masks are one key of a dictionary"):
        assert mask == case.make(masks)
        assert {mask: name}[case.make(masks)] == name
        others = [other for other in ("causal", "local") if other != name]
        assert not any(mask == MASKS[other].make(masks) for other in others)
    if case.array is not None:
        with subtests.test("as an array"):
            np.testing.assert_array_equal(case.array(masks), may)

    problem = Attention(batch=1, heads=2, length=LENGTH)
    fn = kernel.make_splash_mha(
        masks.MultiHeadMask([mask] * problem.heads),
        head_shards=1,
        q_seq_shards=1,
        block_sizes=kernel.BlockSizes(**dict.fromkeys(BLOCKS, 128)),
    )
    q, k, v, gradient = (array[0] for array in problem.arrays())
    result, back = jax.vjp(lambda q, k, v: fn(q * problem.scale, k, v), q, k, v)
    expected, *gradients = (array[0] for array in problem.expected(may))
    with subtests.test("result"):
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)
    for which, got, own in zip("qkv", back(gradient), gradients, strict=True):
        with subtests.test(gradient=which):
            np.testing.assert_allclose(got, own, rtol=1e-3, atol=1e-3)
