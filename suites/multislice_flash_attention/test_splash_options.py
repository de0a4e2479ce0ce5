"""JAX's splash attention with each of its options, and divided over devices, against NumPy."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from harness.model.topology import Topology
from suites.multislice_flash_attention.attention_by_hand import Answer, attention
from suites.shared.jax_releases import jitted, needs_tpu_interpret_mode

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("1"),
    pytest.mark.upstream("pytorch/xla#8850"),
    pytest.mark.deadline(60),
    needs_tpu_interpret_mode,
]
HEADS, LENGTH, WIDTH = 4, 512, 128
PLACE = np.arange(LENGTH)
CAUSAL = PLACE[:, None] >= PLACE
LOCAL = (PLACE[:, None] - 100 <= PLACE) & (PLACE[:, None] + 20 >= PLACE)
RANDOM = (np.random.default_rng(1).random(CAUSAL.shape) < 0.5) & CAUSAL | (PLACE[:, None] == PLACE)
RANDOM[128:256, :128] = True  # a whole block, and others are empty
EACH = np.stack([CAUSAL, LOCAL, RANDOM, CAUSAL])
ALLOWED = {"causal": CAUSAL, "local": LOCAL, "random": RANDOM, "each": EACH}
SEGMENTS = (PLACE >= 100).astype(np.int32) + (PLACE >= 230)
SIZES = (
    *("block_q", "block_kv", "block_kv_compute", "block_q_dkv", "block_kv_dkv"),
    *("block_kv_dkv_compute", "block_q_dq", "block_kv_dq"),
)


@dataclass(frozen=True)
class Options:
    """A mask of one or all heads, blocks in the order of SIZES, and what else is given."""

    mask: str = "causal"
    blocks: tuple[int | None, ...] = (128,) * 8
    length: int = 256
    kv_heads: int = HEADS
    fused: bool = False
    minor: str = ""  # operands whose sequence is the minor dimension
    cap: float | None = None
    segmented: bool = False
    sinks: bool = False
    dynamic: bool = False
    reference: tuple[str, ...] = ()  # how JAX's own references differentiate

    @property
    def allowed(self) -> np.ndarray:
        """Return which key each query of each head may see."""
        mask = ALLOWED[self.mask][..., : self.length, : self.length]
        return np.broadcast_to(mask, (HEADS, self.length, self.length))


OPTIONS = {
    "a mask for each head": Options("each", (256, 256, 128, 128, 256, 128, 256, 128)),
    "fused": Options("local", (128, 256, 128, 128, 256, 128, None, None), fused=True),
    "segments": Options("random", cap=1.5, segmented=True, reference=("vanilla", "custom")),
    "one head of keys": Options("local", kv_heads=1, reference=("custom",)),
    "two heads of keys": Options("each", kv_heads=2, segmented=True, cap=2.0),
    "sequences minor": Options(minor="qkv"),
    "dynamic": Options("each", dynamic=True),
    "sinks": Options(sinks=True, kv_heads=2, reference=("vanilla", "custom", "custom_vanilla")),
}


def arrays(options: Options) -> tuple[np.ndarray, ...]:
    """Return queries, keys, values, the result's gradient and sinks."""
    random, kv_heads = np.random.default_rng(8850), options.kv_heads
    shapes = [(heads, options.length, WIDTH) for heads in (HEADS, kv_heads, kv_heads, HEADS)]
    q, *rest = (random.standard_normal(shape, np.float32) for shape in (*shapes, (HEADS,)))
    return q * np.float32(WIDTH**-0.5), *rest


def answer(options: Options) -> Answer:
    """Return NumPy's answer, in which the heads that share keys are summed."""
    q, k, v, gradient, sinks = arrays(options)
    shared = HEADS // options.kv_heads
    allowed, segments = options.allowed, SEGMENTS[: options.length]
    if options.segmented:
        allowed = allowed & (segments[:, None] == segments)
    k, v = (np.repeat(array, shared, axis=0) for array in (k, v))
    own = attention(
        q, k, v, gradient, allowed, cap=options.cap, sinks=sinks if options.sinks else None
    )
    for name in "kv":
        summed = own.gradients[name].reshape(-1, shared, options.length, WIDTH).sum(1)
        own.gradients[name] = summed
    return own


@pytest.mark.long
@pytest.mark.parametrize("name", OPTIONS)
def test_attention(name: str, subtests: pytest.Subtests) -> None:
    """The result, the gradients and what is saved for them; JAX's own reference is right, too."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernel

    options, own = OPTIONS[name], answer(OPTIONS[name])
    parameters = inspect.signature(kernel.attention_reference).parameters
    if options.sinks and "sinks" not in parameters:
        pytest.skip("this release of JAX has no attention sinks")
    single = options.kv_heads == 1
    mask, segments = options.allowed, SEGMENTS[: options.length]
    layouts = {f"{operand}_layout": kernel.QKVLayout.SEQ_MINOR for operand in options.minor}
    blocks = kernel.BlockSizes(
        **dict(zip(SIZES, options.blocks, strict=True)),
        use_fused_bwd_kernel=options.fused,
        **layouts,
    )
    make = kernel.make_splash_mqa if single else kernel.make_splash_mha
    given = {
        "head_shards": 1,
        "q_seq_shards": 1,
        "block_sizes": blocks,
        "attn_logits_soft_cap": options.cap,
    }
    q, k, v, gradient, sinks = arrays(options)
    k, v = (array[0] if single else array for array in (k, v))
    ids = kernel.SegmentIds(segments, segments) if options.segmented else None
    operands = (q, k, v, sinks) if options.sinks else (q, k, v)
    names = ("q", "k", "v", "sinks")[: len(operands)]
    references = kernel.make_masked_mqa_reference if single else kernel.make_masked_mha_reference

    # JAX 0.10 and later can't read a dynamic mask in a jitted function: test_over_devices asks.
    of_kernel = make(jnp.asarray(mask) if options.dynamic else mask, **given)

    def compute(q: Any, k: Any, v: Any, *sinks: Any) -> dict[str, Any]:
        implementations = {"kernel": of_kernel} | {
            f"reference {way}": partial(
                references(mask, backward_impl=way), attn_logits_soft_cap=options.cap
            )
            for way in options.reference
        }
        answers: dict[str, Any] = {}
        for implementation, fn in implementations.items():
            result, back = jax.vjp(
                lambda q, k, v, *sinks, fn=fn: fn(q, k, v, ids, *sinks), q, k, v, *sinks
            )
            answers[implementation] = result, back(gradient)
        if options.reference and not single:
            saving = make(mask, **given, save_residuals=True)
            answers["saved"] = (
                saving(q, k, v, ids, *sinks),
                references(mask)(
                    q, k, v, ids, *sinks, save_residuals=True, attn_logits_soft_cap=options.cap
                ),
            )
        return answers

    answers = jax.jit(compute)(*operands)
    for result, (logsumexp,) in answers.pop("saved", ()):
        with subtests.test("saved"):
            np.testing.assert_allclose(result, own.result, rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(logsumexp, own.logsumexp, rtol=1e-4, atol=1e-4)
    for implementation, (result, gradients) in answers.items():
        with subtests.test(implementation):
            np.testing.assert_allclose(result, own.result, rtol=1e-4, atol=1e-4)
        for which, got in zip(names, gradients, strict=True):
            with subtests.test(implementation, gradient=which):
                oracle = own.gradients[which].reshape(got.shape)
                np.testing.assert_allclose(got, oracle, rtol=1e-3, atol=1e-3)


@pytest.mark.long
@pytest.mark.topologies("4")
@pytest.mark.parametrize("name", ["each", "random", "dynamic"])
def test_over_devices(name: str, topology: Topology, subtests: pytest.Subtests) -> None:
    """Heads over two devices, and queries over two."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernel
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mask = {
        "each": lambda: masks.MultiHeadMask([masks.NumpyMask(each) for each in EACH]),
        "random": lambda: masks.MultiHeadMask([masks.NumpyMask(RANDOM)] * HEADS),
        "dynamic": lambda: jnp.asarray(EACH),
    }[name]()
    sizes = dict.fromkeys(SIZES, 128) | dict.fromkeys(("block_kv", "block_kv_dkv"), 256)
    options = Options("each" if name == "dynamic" else name, length=LENGTH)
    own = answer(options)
    mesh = Mesh(np.array(jax.devices()).reshape(2, topology.total // 2), ("heads", "queries"))
    divided, keys = PartitionSpec("heads", "queries"), PartitionSpec("heads")
    q, k, v, gradient, _ = arrays(options)

    fn = kernel.make_splash_mha(
        mask, head_shards=2, q_seq_shards=2, block_sizes=kernel.BlockSizes(**sizes)
    )
    of_kernel = fn.manual_sharding_spec(NamedSharding(mesh, divided))
    sharded = jitted(
        lambda fn, q, k, v: fn(q, k, v), mesh, (of_kernel, divided, keys, keys), divided
    )

    def compute(q: Any, k: Any, v: Any) -> tuple[Any, Any]:
        if name != "each":  # backward the others are no different
            return sharded(fn, q, k, v), ()
        result, back = jax.vjp(lambda *operands: sharded(fn, *operands), q, k, v)
        return result, back(gradient)

    result, gradients = jax.jit(compute)(q, k, v)
    with subtests.test("result"):
        np.testing.assert_allclose(result, own.result, rtol=1e-4, atol=1e-4)
    for which, got in zip("qkv", gradients, strict=False):
        with subtests.test(gradient=which):
            np.testing.assert_allclose(got, own.gradients[which], rtol=1e-3, atol=1e-3)
