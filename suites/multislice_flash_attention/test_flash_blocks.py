"""JAX's flash attention in blocks of other sizes forward and backward, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from suites.multislice_flash_attention.attention_by_hand import attention
from suites.shared.jax_releases import needs_tpu_interpret_mode

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("1"),
    pytest.mark.upstream("pytorch/xla#8850"),
    pytest.mark.deadline(60),
    needs_tpu_interpret_mode,
]
BATCH, HEADS, QUERIES, KEYS, WIDTH = 2, 1, 256, 512, 64
FORWARD = ("block_q", "block_k_major", "block_k", "block_b")
OF_KEYS = ("block_q_major_dkv", "block_k_major_dkv", "block_k_dkv", "block_q_dkv")
OF_QUERIES = ("block_k_major_dq", "block_k_dq", "block_q_dq")
NAMES = (*FORWARD, *OF_KEYS, *OF_QUERIES)


def arrays() -> tuple[np.ndarray, ...]:
    """Return queries, keys, values, the result's gradient and a bias."""
    random = np.random.default_rng(8850)
    lengths = (QUERIES, KEYS, KEYS, QUERIES)
    shapes = [(BATCH, HEADS, length, WIDTH) for length in lengths]
    shapes.append((BATCH, HEADS, QUERIES, KEYS))
    return tuple(random.standard_normal(shape, np.float32) for shape in shapes)


def segments(length: int) -> np.ndarray:
    """Return the number of each token's segment, which begin elsewhere in the second sequence."""
    place = np.arange(length)
    ends = np.array([[0.0, 0.3], [0.0, 0.6]]) * QUERIES
    return (place >= ends[..., None]).sum(1).astype(np.int32) - 1


def masked(causal: bool, divided: bool) -> np.ndarray:
    allowed = np.ones((BATCH, 1, QUERIES, KEYS), bool)
    if causal:
        allowed &= np.arange(KEYS) <= np.arange(QUERIES)[:, None]
    if divided:
        allowed &= (segments(QUERIES)[:, :, None] == segments(KEYS)[:, None])[:, None]
    return allowed


# Blocks in the order of NAMES, and what else is given.
BLOCKS: dict[str, tuple[tuple[int, ...], set[str]]] = {
    "minor": ((128, 256, 128, 2, 256, 256, 128, 128, 256, 128, 128), {"causal"}),
    "one step": ((128, 512, 512, 1, 128, 512, 256, 128, 512, 256, 128), {"bias", "segments"}),
    "all": (
        (256, 256, 128, 1, 256, 512, 256, 128, 512, 512, 256),
        {"causal", "bias", "segments"},
    ),
}


def value_and_gradients(fn: Callable[..., Any], gradient: Any, *operands: Any) -> Any:
    result, back = jax.vjp(fn, *operands)
    return result, back(gradient)


@pytest.mark.long
@pytest.mark.parametrize("name", BLOCKS)
def test_attention(name: str, subtests: pytest.Subtests) -> None:
    from jax.experimental.pallas.ops.tpu import flash_attention as flash

    sizes, given = BLOCKS[name]
    q, k, v, gradient, bias = arrays()
    ids = flash.SegmentIds(segments(QUERIES), segments(KEYS)) if "segments" in given else None
    fn = partial(
        flash.flash_attention,
        segment_ids=ids,
        causal="causal" in given,
        sm_scale=0.2,
        block_sizes=flash.BlockSizes(**dict(zip(NAMES, sizes, strict=True))),
    )
    operands = (q, k, v, bias) if "bias" in given else (q, k, v)
    result, gradients = jax.jit(partial(value_and_gradients, fn, gradient))(*operands)
    allowed = masked("causal" in given, "segments" in given)
    own = attention(q, k, v, gradient, allowed, bias=bias if "bias" in given else None, scale=0.2)
    with subtests.test("result"):
        np.testing.assert_allclose(result, own.result, rtol=1e-4, atol=1e-4)
    names = ("q", "k", "v", "bias")[: len(operands)]
    for which, got in zip(names, gradients, strict=True):
        with subtests.test(gradient=which):
            np.testing.assert_allclose(got, own.gradients[which], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("given", [set(), {"causal", "bias", "segments"}], ids=["plain", "all"])
def test_reference(given: set[str], subtests: pytest.Subtests) -> None:
    """What JAX compares its kernel with; its gradient is for a scale of one."""
    from jax.experimental.pallas.ops.tpu import flash_attention as flash

    q, k, v, gradient, bias = arrays()
    q *= 0.25
    ids = flash.SegmentIds(segments(QUERIES), segments(KEYS)) if "segments" in given else None
    given_bias = bias if "bias" in given else None
    causal = "causal" in given
    allowed = masked(causal, "segments" in given)

    def fn(q: Any, k: Any, v: Any) -> Any:
        with jax.default_matmul_precision("highest"):
            return flash.mha_reference(q, k, v, given_bias, ids, causal)

    own = attention(q, k, v, gradient, allowed, bias=given_bias)
    result, gradients = jax.jit(partial(value_and_gradients, fn, gradient))(q, k, v)
    with subtests.test("result"):
        np.testing.assert_allclose(result, own.result, rtol=3e-2, atol=3e-2)
    for which, got in zip("qkv", gradients, strict=True):
        with subtests.test(gradient=which):
            np.testing.assert_allclose(got, own.gradients[which], rtol=5e-2, atol=5e-2)
    with subtests.test("without a rule of its own"):
        scaled = attention(q, k, v, gradient, allowed, bias=given_bias, scale=0.3)
        saving = partial(
            flash.mha_reference_no_custom_vjp, causal=causal, sm_scale=0.3, save_residuals=True
        )
        plain, total, largest = jax.jit(saving)(q, k, v, given_bias, ids)
        np.testing.assert_allclose(plain, scaled.result, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(largest + np.log(total), scaled.logsumexp, rtol=1e-4, atol=1e-4)


def test_wrong_calls_are_refused(subtests: pytest.Subtests) -> None:
    from jax.experimental.pallas.ops.tpu import flash_attention as flash

    q, k, v, _, bias = arrays()
    blocks = dict(zip(NAMES, BLOCKS["minor"][0], strict=True))
    right: dict[str, Any] = {"q": q, "k": k, "v": v}

    def call(**options: Any) -> Any:
        return flash.flash_attention(**right | options)

    def sized(**sizes: int) -> Any:
        return call(block_sizes=flash.BlockSizes(**blocks | sizes))

    wrong: dict[str, Any] = {
        "batch of keys": lambda: call(k=k[:1]),
        "batch of values": lambda: call(v=v[:1]),
        "heads": lambda: call(k=k.reshape(BATCH, 2, KEYS // 2, WIDTH)),
        "width of keys": lambda: call(k=k[..., :32]),
        "width of values": lambda: call(v=v[..., :32]),
        "length of values": lambda: call(v=v[:, :, :256]),
        "bias": lambda: call(ab=bias[:, :, :128]),
        "segments of queries": lambda: call(
            segment_ids=flash.SegmentIds(segments(KEYS), segments(KEYS))
        ),
        "segments of keys": lambda: call(
            segment_ids=flash.SegmentIds(segments(QUERIES), segments(QUERIES))
        ),
        "block of the batch": lambda: sized(block_b=4),
        "block of queries": lambda: sized(block_q=512),
        "block of keys": lambda: sized(block_k_major=384, block_k=128),
        "minor larger than major": lambda: sized(block_k=512),
        "minor that does not divide": lambda: sized(block_k_major=384, block_k=256),
        "minor queries larger": lambda: sized(block_q_dkv=512),
        "minor keys larger": lambda: sized(block_k_dkv=512),
        "minor keys of queries larger": lambda: sized(block_k_dq=512),
    }
    for name, fn in wrong.items():
        with subtests.test(wrong=name), pytest.raises((ValueError, NotImplementedError)):
            jax.block_until_ready(fn())
    np.testing.assert_allclose(
        sized(), attention(q, k, v, q, masked(False, False)).result, rtol=1e-3, atol=1e-3
    )
