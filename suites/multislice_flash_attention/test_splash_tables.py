"""The tables that tell splash attention which blocks of a mask to compute, and which to skip.

Put together block by block they are the mask again, whatever is skipped, shared or divided.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import jax
import numpy as np
import pytest

from suites.shared.jax_releases import needs_tpu_interpret_mode

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("1"),
    pytest.mark.upstream("jax-ml/jax#26387"),
    needs_tpu_interpret_mode,
]
HEADS, QUERIES, KEYS = 4, 8, 12
SHAPE = QUERIES, KEYS
BLOCK = 2, 3
SHARDS = ((1, 1), (2, 1), (1, 2), (2, 2))  # of heads and of queries
NAMES = ("heads", "one", "pairs", "causal", "later", "local", "chunked", "rules")


def dense() -> np.ndarray:
    """Return a mask with whole blocks, empty ones and others, another one for each head."""
    mask = np.random.default_rng(5).random((HEADS, *SHAPE)) < 0.4
    mask[:, 2:6, 3:9] = False
    mask[:, 0:4, 0:3] = True
    mask[1, :, 9:] = True
    mask[3, 4:] = mask[2, :4]
    mask[2, 6:] = False
    return mask


def mask_of(name: str, of: Any) -> tuple[Any, np.ndarray]:
    """Return a mask of several heads of JAX's module of masks, and what it is."""
    numbers = dense()
    q, k = np.arange(QUERIES)[:, None], np.arange(KEYS)[None]
    arrays = [of.NumpyMask(mask) for mask in numbers]
    if name in ("heads", "one", "pairs"):
        order = {"heads": [0, 1, 2, 3], "one": [2] * 4, "pairs": [0, 0, 1, 1]}[name]
        return of.MultiHeadMask([arrays[n] for n in order]), numbers[order]
    rules: dict[str, tuple[Any, np.ndarray]] = {
        "causal": (lambda: of.CausalMask(SHAPE), k <= q),
        "later": (lambda: of.CausalMask(SHAPE, 5), k <= q + 5),
        "local": (lambda: of.LocalMask(SHAPE, (2, 3), 1), (q - 1 <= k) & (k <= q + 4)),
        "chunked": (lambda: of.ChunkedCausalMask(SHAPE, 4), (k <= q) & (q // 4 == k // 4)),
        "rules": (lambda: of.CausalMask(SHAPE), k <= q),
    }
    masks, rule = rules[name]
    heads = [masks() for _ in range(HEADS)]
    expected = np.stack([rule] * HEADS)
    if name == "rules":
        heads[1] = of.FullMask(SHAPE)
        expected[1] = True
    return of.MultiHeadMask(heads), expected


def on_devices(info: Any, shards: tuple[int, int]) -> Iterator[tuple[int, int, Any]]:
    """Yield each device's place along heads and queries, and its part of the tables."""
    tables = {name: getattr(info, name) for name in ("block_mask", "data_next", "mask_next")}
    dynamic = bool(getattr(info, "is_dynamic_mask", False))
    if dynamic:
        tables["partial_mask_blocks"] = info.partial_mask_blocks
    for place in np.ndindex(shards):
        own = {}
        for name, table in tables.items():
            if table is not None:
                heads, queries = (
                    slice(n * (size // count), (n + 1) * (size // count))
                    for n, size, count in zip(place, table.shape, shards, strict=False)
                )
                own[name] = np.asarray(table)[heads, queries]
        if dynamic:
            blocks = own["partial_mask_blocks"]
            own["partial_mask_blocks"] = blocks.reshape(-1, *blocks.shape[3:])
        yield *place, info._replace(**own)


def whole(info: Any, function: Any, shards: tuple[int, int], *, dkv: bool) -> np.ndarray:
    """Return the mask that the devices' kernels apply, step by step."""
    mask = np.zeros((HEADS, *SHAPE), bool)
    heads, rows = HEADS // shards[0], QUERIES // shards[1]
    for along_heads, along_queries, own in on_devices(info, shards):
        for head, step in product(range(heads), np.ndindex(own.block_mask.shape[1:])):
            table = head if own.block_mask.shape[0] == heads else 0
            kind, data = own.block_mask[table][step], own.data_next[table][step]
            if not kind:
                continue
            q, k = (data, step[1]) if dkv else (step[0], data)
            start = along_queries * rows + q * BLOCK[0]
            at = np.s_[start : start + BLOCK[0], k * BLOCK[1] : (k + 1) * BLOCK[1]]
            if kind == 2:
                part = np.ones(BLOCK, bool)
            elif function is not None:
                part = function(info.q_sequence[at[0]][:, None], np.arange(KEYS)[None, at[1]])
            else:
                part = own.partial_mask_blocks[own.mask_next[table][step]]
                part = part.T if dkv else part
            where = mask[along_heads * heads + head][at]
            assert not where.any(), "a block is computed twice"
            where[...] = part
    return mask


def kinds_of(mask: np.ndarray) -> np.ndarray:
    """Return for each block 0 if it is empty, 2 if all of it is in the mask, and 1 otherwise."""
    blocks = mask.reshape(-1, QUERIES // BLOCK[0], BLOCK[0], KEYS // BLOCK[1], BLOCK[1])
    return blocks.any((2, 4)).astype(int) + blocks.all((2, 4))


def most_steps(mask: np.ndarray, queries: int, *, dkv: bool) -> int:
    """Return how many blocks a row of blocks has at most; for keys' gradients, a column."""
    return max(int((part != 0).sum(2 - dkv).max()) for part in np.split(kinds_of(mask), queries, 1))


@pytest.mark.parametrize("dkv", [False, True], ids=["forward", "backward"])
def test_blocks_are_the_mask(dkv: bool, subtests: pytest.Subtests) -> None:
    """Only blocks with something in them are steps, if all heads have the same mask."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as of
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask_info as info

    jax.devices()
    process = info.process_mask_dkv if dkv else info.process_mask
    for name, shards, shrink in product(NAMES, SHARDS, (True, False)):
        mask, expected = mask_of(name, of)
        options: dict[str, Any] = {
            "head_shards": shards[0],
            "q_seq_shards": shards[1],
            "shrink_grid": shrink,
        }
        tables, function = process(mask, BLOCK, downcast_smem_data=shrink, **options)
        with subtests.test(mask=name, **options):
            np.testing.assert_array_equal(whole(tables, function, shards, dkv=dkv), expected)
            given = [tables.block_mask, tables.data_next, tables.mask_next]
            types = {table.dtype for table in given if table is not None}
            assert types == {np.dtype(np.int8 if shrink else np.int32)}
            assert (function is None) == (name in ("heads", "one", "pairs", "rules"))
            assert (tables.q_sequence is None) == (function is None)
            assert (tables.mask_next is None) == (tables.partial_mask_blocks is None)
            alike = name not in ("heads", "rules", "pairs")
            each = alike or (name == "pairs" and shards[0] == 2)
            heads = range(0, HEADS, HEADS // shards[0]) if each else range(HEADS)
            if shrink and alike:
                most = most_steps(expected, shards[1], dkv=dkv)
                sizes = (most * shards[1], 4) if dkv else (4, most)
                assert tables.block_mask.shape == (shards[0], *sizes)
            else:
                np.testing.assert_array_equal(tables.block_mask, kinds_of(expected[[*heads]]))
            if tables.partial_mask_blocks is not None:
                parts = {part.tobytes() for part in np.asarray(tables.partial_mask_blocks)}
                assert len(parts) == len(tables.partial_mask_blocks), "a block is kept twice"


def test_arrays_of_masks(subtests: pytest.Subtests) -> None:
    """An array of a mask, and any part of the mask itself, is what its rule says."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as of

    jax.devices()
    q, k = np.arange(QUERIES)[:, None], np.arange(KEYS)[None]
    rules: dict[str, tuple[Any, Any, np.ndarray]] = {
        "causal": (of.make_causal_mask(SHAPE), of.CausalMask(SHAPE), k <= q),
        "later": (of.make_causal_mask(SHAPE, 2), of.CausalMask(SHAPE, 2), k <= q + 2),
        "earlier": (of.make_causal_mask(SHAPE, -1), of.CausalMask(SHAPE, -1), k <= q - 1),
        "chunked": (
            of.make_chunk_attention_mask(SHAPE, 3),
            of.ChunkedCausalMask(SHAPE, 3),
            (k <= q) & (q // 3 == k // 3),
        ),
    }
    for left, right, offset in ((2, 1, 0), (None, 1, 0), (2, None, 1), (2, 1, -1), (None, None, 0)):
        rule = np.ones(SHAPE, bool)
        rule &= True if left is None else q + offset - left <= k
        rule &= True if right is None else k <= q + offset + right
        array = of.make_local_attention_mask(SHAPE, (left, right), offset=offset)
        mask = of.LocalMask(SHAPE, (left, right), offset)
        rules[f"local {left} {right} {offset}"] = array, mask, rule
    for name, (array, mask, rule) in rules.items():
        with subtests.test(mask=name):
            np.testing.assert_array_equal(array, rule)
            assert array.dtype == bool
            for part in (np.s_[:, :], np.s_[1:4, 2:], np.s_[2:, :5], np.s_[:3, 4:9]):
                np.testing.assert_array_equal(mask[part], rule[part])
                both = (mask | of.CausalMask(SHAPE), rule | (k <= q))
                np.testing.assert_array_equal(both[0][part], both[1][part])
                either = (mask & of.CausalMask(SHAPE), rule & (k <= q))
                np.testing.assert_array_equal(either[0][part], either[1][part])
            heads = of.MultiHeadMask([mask, of.NumpyMask(~rule), of.FullMask(SHAPE)])
            assert heads.shape == (3, *SHAPE)
            numbers = np.stack([rule, ~rule, np.ones(SHAPE, bool)])
            for at in (np.s_[1, :, :], np.s_[0, 1:4, 2:8], np.s_[:, 1:4, 2:], np.s_[1:, :, :2]):
                np.testing.assert_array_equal(heads[at], numbers[at])
    with subtests.test("random"):
        random = of.make_random_mask((64, 32), 0.9, 1)
        assert (random.shape, random.dtype) == ((64, 32), np.dtype(bool))
        assert 0.05 < random.mean() < 0.15
        np.testing.assert_array_equal(random, of.make_random_mask((64, 32), 0.9, 1))
        assert (random != of.make_random_mask((64, 32), 0.9, 2)).any()


def test_what_a_skipped_step_fetches() -> None:
    """It is what the next step with something needs, so that nothing is fetched in vain."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as of
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask_info as info

    jax.devices()
    for name, dkv in product(("heads", "one"), (False, True)):
        mask, expected = mask_of(name, of)
        process = info.process_mask_dkv if dkv else info.process_mask
        tables, _ = process(mask, BLOCK, shrink_grid=False)
        kinds = kinds_of(expected[: tables.block_mask.shape[0]])
        order = [(h, q, k) for h, q, k in np.ndindex(kinds.shape)]
        order = sorted(order, key=lambda at: (at[2], at[0], at[1])) if dkv else order
        for table, needed in ((tables.data_next, (1, 2)), (tables.mask_next, (1,))):
            for number, at in enumerate(order):
                later = order[number:] + order[:number]
                there = next(step for step in later if kinds[step] in needed)
                assert table[at] == table[there], (name, dkv, at)
            if table is tables.data_next:
                used = [at for at in order if kinds[at]]
                assert [table[at] for at in used] == [at[1 if dkv else 2] for at in used]


def test_masks_that_are_arrays(subtests: pytest.Subtests) -> None:
    """A mask that is computed on a device is in its blocks, the empty ones of which are skipped."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask_info as info

    if not hasattr(info, "process_dynamic_mask_dkv"):
        pytest.skip("this release of JAX has no tables of such a mask")
    mask = dense()
    for dkv, shards in ((False, (1, 2)), (True, (2, 2))):
        process = info.process_dynamic_mask_dkv if dkv else info.process_dynamic_mask
        fn = jax.jit(
            lambda array, process=process, shards=shards: process(
                array, BLOCK, head_shards=shards[0], q_seq_shards=shards[1]
            )[0]._replace(is_dynamic_mask=None)
        )
        tables = fn(mask)._replace(is_dynamic_mask=True)
        with subtests.test(dkv=dkv, shards=shards):
            kinds = kinds_of(mask)
            np.testing.assert_array_equal(tables.block_mask, kinds)
            np.testing.assert_array_equal(np.asarray(tables.data_next)[kinds == 0], 0)
            np.testing.assert_array_equal(np.asarray(tables.mask_next)[kinds != 1], 0)
            np.testing.assert_array_equal(whole(tables, None, shards, dkv=dkv), mask)
            assert {table.dtype.name for table in tables[:3]} == {"int8"}


def test_numbers_of_many_blocks(subtests: pytest.Subtests) -> None:
    """Numbers above 127 take 16 bits in the table that has them."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as of
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask_info as info

    jax.devices()
    for blocks, dtype in ((128, np.int8), (129, np.int16)):
        mask = np.ones((1, 2, blocks * 2), bool)
        mask[0, 0, -1] = False
        tables, _ = info.process_mask(of.MultiHeadMask([of.NumpyMask(mask[0])]), (2, 2))
        with subtests.test(blocks=blocks):
            assert tables.data_next.tolist() == [[[*range(blocks)]]]
            assert (tables.data_next.dtype, tables.block_mask.dtype) == (dtype, np.int8)
            assert tables.block_mask[0, 0].tolist() == [2] * (blocks - 1) + [1]
    wrong = {
        "queries": ((3, 3), {}),
        "keys": ((2, 5), {}),
        "shards of queries": ((2, 3), {"q_seq_shards": 3}),
        "blocks of a shard": ((4, 3), {"q_seq_shards": 4}),
        "shards of heads": ((2, 3), {"head_shards": 3}),
    }
    mask = of.MultiHeadMask([of.NumpyMask(head) for head in dense()])
    for name, (block, options) in wrong.items():
        for process in (info.process_mask, info.process_mask_dkv):
            with subtests.test(wrong=name), pytest.raises(ValueError, match="divide"):
                process(mask, block, **options)


@pytest.mark.parametrize(
    "queries", [1, pytest.param(2, marks=pytest.mark.upstream("jax-ml/jax#37179"))]
)
def test_whole_blocks_only(queries: int) -> None:
    """A mask without a block that is only partly in it can be divided, too."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as of
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask_info as info

    jax.devices()
    mask = of.MultiHeadMask([of.FullMask(SHAPE)] * HEADS)
    for dkv, process in enumerate((info.process_mask, info.process_mask_dkv)):
        tables, function = process(mask, BLOCK, q_seq_shards=queries)
        again = whole(tables, function, (1, queries), dkv=bool(dkv))
        np.testing.assert_array_equal(again, True)
