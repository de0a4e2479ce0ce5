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


# Each gradient is a kernel of its own, which computes the mask as another one does.
DIFFERENTIATED = ("causal", "local", "chunked", "either")


def allowed(rule: Callable[[int, int], bool]) -> np.ndarray:
    """Return which key each query may see, pair by pair."""
    return np.array([[rule(q, k) for k in range(LENGTH)] for q in range(LENGTH)])


def test_masks_without_a_kernel(subtests: pytest.Subtests) -> None:
    """Which masks are one key of a dictionary, masks of arrays and of heads, and wrong ones."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernel
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as of

    jax.devices()
    tril = np.tril(np.ones((6, 8), bool))
    make: dict[str, Callable[[], Any]] = {
        "array": lambda: of.NumpyMask(tril.copy()),
        "another array": lambda: of.NumpyMask(~tril),
        "full": lambda: of.FullMask((6, 8)),
        "a smaller one": lambda: of.FullMask((6, 6)),
        "causal": lambda: of.CausalMask((6, 8)),
        "causal later": lambda: of.CausalMask((6, 8), 1),
        "a wider causal": lambda: of.CausalMask((6, 9)),
        "local": lambda: of.LocalMask((6, 8), (2, 1), 0),
        "local later": lambda: of.LocalMask((6, 8), (2, 1), 1),
        "another window": lambda: of.LocalMask((6, 8), (1, 2), 0),
        "all of a window": lambda: of.LocalMask((6, 8), (None, None), 0),
        "a wider local": lambda: of.LocalMask((6, 9), (2, 1), 0),
        "either": lambda: of.NumpyMask(tril) | of.FullMask((6, 8)),
        "both": lambda: of.NumpyMask(tril) & of.FullMask((6, 8)),
        "of heads": lambda: of.MultiHeadMask([of.NumpyMask(tril), of.FullMask((6, 8))]),
        "of swapped heads": lambda: of.MultiHeadMask([of.FullMask((6, 8)), of.NumpyMask(tril)]),
        "of one head": lambda: of.MultiHeadMask([of.FullMask((6, 8))]),
    }
    if hasattr(of, "ChunkedCausalMask"):
        make["chunked"] = lambda: of.ChunkedCausalMask((6, 8), 2)
        make["larger chunks"] = lambda: of.ChunkedCausalMask((6, 8), 3)
        make["a wider chunked"] = lambda: of.ChunkedCausalMask((6, 9), 2)
    masks = {name: mask() for name, mask in make.items()}
    names = {mask: name for name, mask in masks.items()}
    assert len(names) == len(make)
    for name, mask in make.items():
        with subtests.test(mask=name):
            assert names[mask()] == name
            assert hash(mask()) == hash(masks[name])
            assert [other for other in masks if mask() == masks[other]] == [name]
            assert mask() != "no mask"
    with subtests.test("parts"):
        heads = np.stack([tril, np.ones((6, 8), bool)])
        for part in (np.s_[1, :, :], np.s_[0, 1:4, 2:8], np.s_[:, 1:4, 2:], np.s_[1:, :, :2]):
            np.testing.assert_array_equal(masks["of heads"][part], heads[part])
        np.testing.assert_array_equal(masks["all of a window"][1:3, 2:], heads[1, 1:3, 2:])
        assert masks["of heads"].shape == (2, 6, 8)
        assert masks["either"].shape == masks["both"].shape == (6, 8)
        random = of.make_random_mask((64, 64), 0.9, 1)
        assert random.shape == (64, 64)
        assert 0.05 < random.mean() < 0.15
        np.testing.assert_array_equal(random, of.make_random_mask((64, 64), 0.9, 1))
        assert (random != of.make_random_mask((64, 64), 0.9, 2)).any()
    wrong: dict[str, Callable[[], Any]] = {
        "or of another shape": lambda: masks["full"] | masks["a smaller one"],
        "and of another shape": lambda: masks["full"] & masks["a smaller one"],
        "parts of or": lambda: of.LogicalOr(masks["full"], masks["a smaller one"]),
        "parts of and": lambda: of.LogicalAnd(masks["full"], masks["a smaller one"]),
        "no head": lambda: of.MultiHeadMask([]),
        "heads of two shapes": lambda: of.MultiHeadMask([masks["full"], masks["a smaller one"]]),
        "nested": lambda: of.MultiHeadMask([masks["of heads"]]),
        "no mask": lambda: of.MultiHeadMask([tril]),
        "a line": lambda: of.NumpyMask(tril[0]),
        "numbers": lambda: of.NumpyMask(tril.astype(int)),
        "shards that do not divide": lambda: of.CausalMask((6, 8), shard_count=2),
        "shards of a window": lambda: of.LocalMask((6, 8), (2, 1), 0, shard_count=2),
        "a list": lambda: of.FullMask([6, 8]),
        "one dimension": lambda: masks["causal"][0:1,],
        "a row": lambda: masks["causal"][0, 0:2],
        "a row of all": lambda: masks["full"][0, 0:2],
        "too many dimensions": lambda: masks["of heads"][0:1, 0:2],
        "truth": lambda: bool(masks["full"]),
        "no heads for a kernel": lambda: kernel.make_splash_mha(
            tril, head_shards=1, q_seq_shards=1
        ),
    }
    if "chunked" in make:
        wrong["shards of chunks"] = lambda: of.ChunkedCausalMask((6, 8), 2, shard_count=2)
        wrong["no chunk"] = lambda: of.ChunkedCausalMask((6, 8), 0)
        wrong["no chunk of an array"] = lambda: of.make_chunk_attention_mask((6, 8), 0)
    for name, fn in wrong.items():
        with subtests.test(wrong=name), pytest.raises((ValueError, NotImplementedError)):
            fn()


@pytest.mark.long
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

    @jax.jit
    def compute(q: Any, k: Any, v: Any) -> tuple[Any, Any]:
        if name not in DIFFERENTIATED:
            return fn(q * problem.scale, k, v), ()
        result, back = jax.vjp(lambda q, k, v: fn(q * problem.scale, k, v), q, k, v)
        return result, back(gradient)

    result, gradients = compute(q, k, v)
    expected, *oracles = (array[0] for array in problem.expected(may))
    with subtests.test("result"):
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)
    for which, got, own in zip("qkv", gradients, oracles, strict=False):
        with subtests.test(gradient=which):
            np.testing.assert_allclose(got, own, rtol=1e-3, atol=1e-3)
