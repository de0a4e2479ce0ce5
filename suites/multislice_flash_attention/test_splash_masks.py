"""JAX's splash attention under each of its masks, forward and backward, and what each mask is."""

from __future__ import annotations

from collections.abc import Callable
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
Rule = Callable[[int, int], bool]  # whether a query may see a key
RULES: dict[str, Rule] = {
    "full": lambda q, k: True,
    "causal": lambda q, k: k <= q,
    "causal-later": lambda q, k: k <= q + 40,
    "local": lambda q, k: q - 90 <= k <= q + 30,
    "local-left": lambda q, k: q - 90 <= k,
    "local-right": lambda q, k: k <= q + 30,
    "local-later": lambda q, k: q + 9 - 90 <= k <= q + 9 + 30,
    "chunked": lambda q, k: k <= q and q // 96 == k // 96,
    "either": lambda q, k: k <= q or q - 90 <= k <= q + 30,
    "both": lambda q, k: k <= q and q - 90 <= k,
}


# Functions that make the same mask as an array: the name, and what comes behind the shape.
ARRAYS: dict[str, tuple[str, tuple[Any, ...], dict[str, int]]] = {
    "causal": ("make_causal_mask", (), {}),
    "causal-later": ("make_causal_mask", (40,), {}),
    "local": ("make_local_attention_mask", ((90, 30),), {}),
    "local-later": ("make_local_attention_mask", ((90, 30),), {"offset": 9}),
    "chunked": ("make_chunk_attention_mask", (96,), {}),
}
BLOCKS = (
    *("block_q", "block_kv", "block_kv_compute", "block_q_dkv", "block_kv_dkv"),
    *("block_kv_dkv_compute", "block_q_dq", "block_kv_dq"),
)


def mask_of(name: str) -> Any:
    """Return JAX's mask of that name."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    causal = masks.CausalMask(SHAPE)
    if name == "chunked" and not hasattr(masks, "ChunkedCausalMask"):
        pytest.skip("this release of JAX has no such mask")
    window = {"local": (90, 30), "local-left": (90, None), "local-right": (None, 30)}
    if name in window:
        return masks.LocalMask(SHAPE, window[name], 0)
    return {
        "full": lambda: masks.FullMask(SHAPE),
        "causal": lambda: causal,
        "causal-later": lambda: masks.CausalMask(SHAPE, 40),
        "local-later": lambda: masks.LocalMask(SHAPE, (90, 30), 9),
        "chunked": lambda: masks.ChunkedCausalMask(SHAPE, 96),
        "either": lambda: causal | masks.LocalMask(SHAPE, (90, 30), 0),
        "both": lambda: causal & masks.LocalMask(SHAPE, (90, None), 0),
    }[name]()


def allowed(rule: Rule) -> np.ndarray:
    """Return which key each query may see, pair by pair."""
    return np.array([[rule(q, k) for k in range(LENGTH)] for q in range(LENGTH)])


@pytest.mark.parametrize("name", RULES)
def test_attention(subtests: pytest.Subtests, name: str) -> None:
    """The mask itself, then the result and the gradients, of blocks smaller than its parts."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernel
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    mask, may = mask_of(name), allowed(RULES[name])
    for part in ((slice(None), slice(None)), (slice(32, 96), slice(128, 256))):
        with subtests.test(part=part):
            np.testing.assert_array_equal(mask[part], may[part])
    with subtests.test("equal masks are one key of a dictionary"):
        assert mask == mask_of(name)
        assert {mask: name}[mask_of(name)] == name
        assert not any(mask == mask_of(other) for other in ("causal", "local") if other != name)
    if name in ARRAYS:
        with subtests.test("as an array"):
            make, arguments, options = ARRAYS[name]
            array = getattr(masks, make)(SHAPE, *arguments, **options)
            np.testing.assert_array_equal(array, may)

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
