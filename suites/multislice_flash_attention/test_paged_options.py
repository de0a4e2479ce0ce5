"""JAX's paged attention with quantized pages and each of its options, against NumPy."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from suites.multislice_flash_attention import ragged
from suites.shared.jax_releases import needs_tpu_interpret_mode

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("1"),
    pytest.mark.upstream("pytorch/xla#8850"),
    pytest.mark.deadline(60),
    needs_tpu_interpret_mode,
]
WIDTH, PAGE, PAGES = 128, 16, 4  # pages of each sequence
LENGTHS = np.array([20, 1, 64, 33], np.int32)


def quantized(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return 8-bit numbers of each row's largest absolute value, and that value."""
    scales = np.abs(x).max(axis=-1, keepdims=True)
    return np.clip(np.rint(x / scales * 127.5), -128, 127).astype(np.int8), scales


def cache(kv_heads: int, heads: int = 8, sequences: int = 4) -> tuple[np.ndarray, ...]:
    """Return queries, pages of keys and of values, and the pages of each sequence."""
    random = np.random.default_rng(8850)
    q = random.standard_normal((sequences, heads, WIDTH), np.float32) / 4
    shape = kv_heads, sequences * PAGES, PAGE, WIDTH
    k, v = (random.standard_normal(shape, np.float32) for _ in range(2))
    places = random.permutation(sequences * PAGES).reshape(sequences, PAGES).astype(np.int32)
    return q, k, v, places


def expected(
    q: np.ndarray,
    pages: tuple[np.ndarray, np.ndarray],
    places: np.ndarray,
    cap: float | None,
    lengths: np.ndarray = LENGTHS,
) -> np.ndarray:
    """Return attention of each sequence's one query; zero where there is no key."""
    group = q.shape[1] // pages[0].shape[0]
    results = np.zeros(q.shape)
    for row, (length, own) in enumerate(zip(lengths, places, strict=True)):
        for head in range(q.shape[1] if length else 0):
            keys, values = (
                array[head // group, own].reshape(-1, WIDTH)[:length].astype(np.float64)
                for array in pages
            )
            scores = keys @ q[row, head].astype(np.float64)
            if cap is not None:
                scores = cap * np.tanh(scores / cap)
            weights = np.exp(scores - scores.max())
            results[row, head] = weights / weights.sum() @ values
    return results


# Heads of keys, pages in a block, and the kernel's options.
OPTIONS: dict[str, tuple[int, int, dict[str, Any]]] = {
    "one page": (1, 1, {}),
    "all pages": (8, 4, {"attn_logits_soft_cap": 1.0}),
    "a step for each block": (2, 2, {"inline_seq_dim": False}),
}
QUANTIZED = ("one page", "a step for each block")


@pytest.mark.parametrize("name", OPTIONS)
def test_paged_attention(name: str, subtests: pytest.Subtests) -> None:
    """Keys and values are rounded to bfloat16; of 8 bits they have half a step's error besides."""
    from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention
    from jax.experimental.pallas.ops.tpu.paged_attention import quantization_utils as utils

    kv_heads, block, options = OPTIONS[name]
    q, k, v, places = cache(kv_heads)
    cap, present = options.get("attn_logits_soft_cap"), LENGTHS > 0
    for kind in ("float32", "int8") if name in QUANTIZED else ("float32",):
        given: list[Any] = [k, v]
        keys = [np.asarray(each.astype(jnp.bfloat16)).astype(np.float32) for each in given]
        if kind == "int8":
            parts = [quantized(each) for each in given]
            given = [utils.QuantizedTensor(*map(jnp.asarray, each)) for each in parts]
            keys = [numbers * scales / 127.5 for numbers, scales in parts]
        result = paged_attention(
            q, *given, LENGTHS, places, pages_per_compute_block=block, **options
        )
        oracle = expected(q, (keys[0], keys[1]), places, cap)
        error = 1e-2 if kind == "int8" else 1e-4
        with subtests.test(kind=kind):
            np.testing.assert_allclose(
                np.asarray(result)[present], oracle[present], rtol=10 * error, atol=error
            )


@pytest.mark.parametrize("inline", [True, False])
def test_every_other_sequence(inline: bool, subtests: pytest.Subtests) -> None:
    """Of two cores each has every other sequence; the other core's are empty, so one is enough."""
    from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention

    heads = 2 if inline else 16  # the kernel has two layouts
    q, k, v, places = cache(2, heads, 8)
    q, keys, values = (np.asarray(each.astype(jnp.bfloat16)) for each in (q, k, v))
    own = np.array([33, 0, 0, 16], np.int32)
    for core, lengths in enumerate((np.insert(own, range(4), 0), np.insert(own, range(1, 5), 0))):
        result = paged_attention(
            q,
            k,
            v,
            lengths,
            places,
            pages_per_compute_block=1,
            megacore_mode="batch",
            inline_seq_dim=inline,
        )
        with subtests.test(core=1 - core):
            assert result.dtype == q.dtype
            oracle = expected(q, (keys, values), places, None, lengths)
            np.testing.assert_allclose(
                np.asarray(result, np.float32)[lengths > 0], oracle[lengths > 0], atol=2**-6
            )


HEADS = {"a group": 2, "eight groups": 16}


@pytest.mark.skipif(
    jax.__version_info__ >= (0, 9), reason="this is asked of the releases that are known to do it"
)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name != "a group")) for name in HEADS]
)
def test_two_cores(name: str) -> None:
    """Each core has half of the keys' heads, in the interpreter of JAX that has two."""
    from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention

    q, k, v, places = cache(2, HEADS[name], 2)
    keys, values = (np.asarray(each.astype(jnp.bfloat16)).astype(np.float32) for each in (k, v))
    lengths = np.array([20, 32], np.int32)
    fields = {field.name for field in dataclasses.fields(pltpu.InterpretParams)}
    (cores,) = (name for name in fields if name.startswith("num_cores_"))
    with pltpu.force_tpu_interpret_mode(pltpu.InterpretParams(**{cores: 2})):
        result = paged_attention(
            q,
            k,
            v,
            lengths,
            places,
            pages_per_compute_block=1,
            megacore_mode="kv_head",
            inline_seq_dim=name == "a group",
        )
    oracle = expected(q, (keys, values), places, None, lengths)
    np.testing.assert_allclose(np.asarray(result), oracle, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("mode", ["kv_head", "batch"])
@pytest.mark.parametrize("inline", [True, False])
def test_two_cores_are_lowered(mode: str, inline: bool) -> None:
    """On one core the kernel would wait forever for what the other one fetches."""
    from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention

    q, k, v, places = cache(2)
    for heads in (8, 16):
        program = paged_attention.lower(
            np.repeat(q, heads // 8, axis=1),
            k,
            v,
            LENGTHS,
            places,
            pages_per_compute_block=2,
            megacore_mode=mode,
            inline_seq_dim=inline,
        )
        assert "tpu_custom_call" in program.as_text()


def test_quantization(subtests: pytest.Subtests) -> None:
    """The largest of a row is 127 or -128 of 8 bits, and comes back with an error of a half."""
    from jax.experimental.pallas.ops.tpu.paged_attention import quantization_utils as utils

    _, x, _, _ = cache(2)
    numbers, scales = quantized(x)
    got = utils.quantize_to_int8(jnp.asarray(x))
    with subtests.test("scales"):
        np.testing.assert_array_equal(utils.get_quantization_scales(jnp.asarray(x)), scales)
        np.testing.assert_array_equal(got.scales, scales)
    with subtests.test("numbers"):
        assert got.weight.dtype == np.int8
        np.testing.assert_allclose(got.weight, numbers, atol=1)
        assert (np.asarray(got.weight) == numbers).mean() > 0.99
    with subtests.test("back"):
        back = utils.unquantize_from_int8(got, dtype=jnp.float32)
        assert back.dtype == np.float32
        np.testing.assert_allclose(back, x, atol=float(scales.max() / 127.5))
        np.testing.assert_allclose(back, numbers * scales / 127.5, atol=scales.max() / 127)
        narrow = got._replace(scales=got.scales.astype(jnp.bfloat16))
        for half in (utils.from_int8(*narrow), utils.unquantize_from_int8(narrow)):
            assert half.dtype == jnp.bfloat16
            np.testing.assert_allclose(half.astype(np.float32), x, atol=0.06)


def test_reference(subtests: pytest.Subtests) -> None:
    """What JAX compares its kernel with takes each sequence's keys in one array."""
    from jax.experimental.pallas.ops.tpu.paged_attention import util

    q, k, v, places = cache(2)
    whole = [np.stack([array[:, own].reshape(2, -1, WIDTH) for own in places]) for array in (k, v)]
    reference = jax.jit(util.grouped_query_attention_reference, static_argnums=4)
    for cap in (None, 0.0, 0.8):
        with subtests.test(cap=cap):
            got = reference(q, *whole, LENGTHS, cap)
            own = expected(q, (k, v), places, cap or None)
            present = LENGTHS > 0
            np.testing.assert_allclose(np.asarray(got)[present], own[present], rtol=1e-4, atol=1e-5)


def test_reference_prints(capfd: pytest.CaptureFixture[str]) -> None:
    from jax.experimental.pallas.ops.tpu.paged_attention import util

    q, k, _, places = cache(2)
    keys = np.stack([k[:, own].reshape(2, -1, WIDTH) for own in places])
    util.grouped_query_attention_reference(q, keys, keys, LENGTHS, debug=True).block_until_ready()
    jax.effects_barrier()
    printed = "".join(capfd.readouterr())
    assert all(word in printed for word in ("qk:", "masked:", "softmax:"))


def test_wrong_pages_are_refused(subtests: pytest.Subtests) -> None:
    from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention

    q, k, v, places = cache(2)
    right = {
        "q": q,
        "k_pages": k,
        "v_pages": v,
        "lengths": LENGTHS,
        "page_indices": places,
        "pages_per_compute_block": 2,
    }
    single = cache(1)
    wrong: dict[str, dict[str, Any]] = {
        "values of another shape": {"v_pages": v[:, :8]},
        "heads that do not divide": {"q": q[:, :7]},
        "another width": {"q": q[..., :64]},
        "blocks that do not divide": {"pages_per_compute_block": 3},
        "too few lengths": {"lengths": LENGTHS[:2]},
        "too few sequences": {"page_indices": places[:2]},
        "lengths of 16 bits": {"lengths": LENGTHS.astype(np.int16)},
        "an odd number of heads": {
            "k_pages": single[1],
            "v_pages": single[2],
            "megacore_mode": "kv_head",
        },
        "an odd number of sequences": {
            "q": q[:3],
            "lengths": LENGTHS[:3],
            "page_indices": places[:3],
            "megacore_mode": "batch",
        },
        "no such mode": {"megacore_mode": "heads"},
    }
    for name, options in wrong.items():
        with subtests.test(wrong=name), pytest.raises(ValueError):
            paged_attention(**right | options)
    present = LENGTHS > 0
    np.testing.assert_allclose(
        np.asarray(paged_attention(**right))[present],
        expected(q, (k, v), places, None)[present],
        rtol=2e-2,
        atol=1e-2,
    )


# Each batch, in what its queries and pages are kept, and the kernel's options.
RAGGED: dict[str, tuple[ragged.Batch, tuple[Any, Any], dict[str, Any]]] = {
    "one page": (
        ragged.Batch(),
        (jnp.bfloat16, jnp.bfloat16),
        {"num_kv_pages_per_block": 1, "num_queries_per_block": 4},
    ),
    "three pages": (
        ragged.Batch(new=(8, 1, 5), lengths=(40, 20, 48), pages=3, window=20, soft_cap=0.8),
        (np.float32, np.float32),
        {"num_kv_pages_per_block": 2, "num_queries_per_block": 16, "vmem_limit_bytes": 1 << 24},
    ),
    "scales": (
        ragged.Batch(heads=8),
        (np.float32, np.int8),
        {"k_scale": 1 / 32, "v_scale": 1 / 28, "mask_value": None},
    ),
    "two blocks of heads": (
        ragged.Batch(new=(3, 4), lengths=(3, 20), heads=16, kv_heads=8),
        (np.float32, np.float32),
        {"num_kv_pages_per_block": None, "num_queries_per_block": None},
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("name", RAGGED)
def test_ragged(name: str, subtests: pytest.Subtests) -> None:
    """The kernel and JAX's reference, of pages that a scale has made smaller or larger."""
    from jax.experimental.pallas.ops.tpu.ragged_paged_attention import kernel

    batch, dtypes, options = RAGGED[name]
    q, pages, *rest = ragged.arguments(batch)
    pages = pages.copy()
    pages[:, :, 0::2] /= options.get("k_scale", 1)
    pages[:, :, 1::2] /= options.get("v_scale", 1)
    pages = np.clip(np.rint(pages), -128, 127) if dtypes[1] == np.int8 else pages
    q, pages = (np.asarray(a).astype(t) for a, t in zip((q, pages), dtypes, strict=True))
    operands = (q, pages, *rest)
    error = {np.int8: 6e-2, jnp.bfloat16: 5e-2}.get(dtypes[1], 1e-4)
    common = {
        "sm_scale": ragged.Batch.SCALE,
        "sliding_window": batch.window,
        "soft_cap": batch.soft_cap,
    }
    with subtests.test("kernel"):
        blocks = {"num_kv_pages_per_block": 2, "num_queries_per_block": 8} | options
        result = kernel.ragged_paged_attention(*operands, **common, **blocks)
        close = partial(np.testing.assert_allclose, desired=ragged.expected(batch), rtol=error)
        close(np.asarray(result, np.float32)[: sum(batch.new)], atol=error)
    numbers = {k: v for k, v in options.items() if k in ("k_scale", "v_scale", "mask_value")}
    with subtests.test("reference"):
        reference = partial(kernel.ref_ragged_paged_attention, **common, **numbers)
        result = jax.jit(lambda q, pages: reference(q, pages, *rest))(q, pages)
        close(np.asarray(result, np.float32), atol=error)
    with subtests.test("accepted"):
        kernel.dynamic_validate_inputs(*operands, **common, **options)


def test_wrong_ragged_batches_are_refused(subtests: pytest.Subtests) -> None:
    from jax.experimental.pallas.ops.tpu.ragged_paged_attention import kernel

    q, pages, lengths, places, ends, count = ragged.arguments(ragged.Batch())
    names = ("q", "kv_pages", "kv_lens", "page_indices", "cu_q_lens", "num_seqs")
    right = dict(zip(names, (q, pages, lengths, places, ends, count), strict=True))
    at_once: dict[str, dict[str, Any]] = {
        "two numbers of sequences": {"num_seqs": np.array([3, 3], np.int32)},
        "another width": {"q": q[..., :64]},
        "too few lengths": {"kv_lens": lengths[:2]},
        "too few ends": {"cu_q_lens": ends[:3]},
        "16 bits": {"cu_q_lens": ends.astype(np.int16)},
        "heads that do not divide": {"q": q[:, :3]},
        "no window": {"sliding_window": 0},
        "no cap": {"soft_cap": 0.0},
        "no page": {"num_kv_pages_per_block": 0},
        "too many pages": {"num_kv_pages_per_block": 3},
        "no query": {"num_queries_per_block": 0},
        "no memory": {"vmem_limit_bytes": 0},
    }
    later: dict[str, dict[str, Any]] = {
        "too many sequences": {"num_seqs": np.array([4], np.int32)},
        "too long": {"kv_lens": np.array([8, 40, 29], np.int32)},
        "too many queries": {"cu_q_lens": np.array([0, 8, 9, 17], np.int32)},
        "more queries than keys": {"kv_lens": np.array([7, 20, 29], np.int32)},
    }
    for name, options in (at_once | later).items():
        with subtests.test(wrong=name), pytest.raises(ValueError):
            kernel.dynamic_validate_inputs(**right | options)
        if name in at_once:
            with subtests.test("kernel", wrong=name), pytest.raises(ValueError):
                kernel.ragged_paged_attention(**right | options)
