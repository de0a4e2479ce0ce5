"""Steps of training and inference as JAX users write them, small: their Python costs, not they."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from suites.host_work.numbers import RATE
from suites.shared.attention import Attention
from suites.shared.jax_releases import checked

WIDTH, HEADS, LAYERS = 32, 4, 3
ATTENTION = Attention(batch=1, heads=1, length=128)
Parameters = Mapping[str, jax.Array]


def parameters(seed: int = 0) -> list[Parameters]:
    """Each layer's weights, the same every time."""
    head = WIDTH // HEADS
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys("qkv", (WIDTH, HEADS, head))
    shapes |= {"out": (HEADS, head, WIDTH), "up": (WIDTH, 64), "down": (64, WIDTH)}
    rng = np.random.default_rng(seed)
    return [
        {n: jnp.asarray(rng.normal(0, 0.1, s), jnp.float32) for n, s in shapes.items()}
        for _ in range(LAYERS)
    ]


def tokens() -> jax.Array:
    """Return a batch of embedded tokens, (batch, length, width)."""
    return jnp.asarray(np.random.default_rng(1).normal(size=(8, 16, WIDTH)), jnp.float32)


def layer(x: jax.Array, p: Parameters) -> jax.Array:
    """Attention and a feed-forward network, each with a residual."""
    h = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
    q, k, v = (jnp.einsum("bld,dhe->blhe", h, p[name]) for name in "qkv")
    weights = jax.nn.softmax(jnp.einsum("blhe,bmhe->bhlm", q, k) / 8)
    x = x + jnp.einsum("bhlm,bmhe,hed->bld", weights, v, p["out"])
    return x + jax.nn.gelu(x @ p["up"]) @ p["down"]


def _descend(loss: Callable[..., jax.Array], weights: Any, x: jax.Array) -> Any:
    value, gradients = jax.value_and_grad(loss)(weights, x)
    return jax.tree.map(lambda w, g: w - RATE * g, weights, gradients), value


def _loss(weights: Any, x: jax.Array) -> jax.Array:
    for each in weights:
        x = layer(x, each)
    return jnp.mean(x * x)


def _scanned_loss(weights: Any, x: jax.Array) -> jax.Array:
    x, _ = lax.scan(lambda carry, each: (layer(carry, each), None), x, weights)
    return jnp.mean(x * x)


def training(mesh: Mesh) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return a step of gradient descent that applies its layers one after the other."""
    del mesh
    return partial(_descend, _loss), (parameters(), tokens())


def scanned(mesh: Mesh) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return a step of gradient descent with its layers in a scan."""
    del mesh
    stacked = jax.tree.map(lambda *each: jnp.stack(each), *parameters())
    return partial(_descend, _scanned_loss), (stacked, tokens())


def sharded(mesh: Mesh) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return a step whose batch is sharded, with a sharding constraint after each layer."""
    along = NamedSharding(mesh, PartitionSpec("x"))
    weights = NamedSharding(mesh, PartitionSpec())

    def loss(each: Any, x: jax.Array) -> jax.Array:
        for weights in each:
            x = lax.with_sharding_constraint(layer(x, weights), along)
        return jnp.mean(x * x)

    given = jax.device_put(parameters(), weights), jax.device_put(tokens(), along)
    return partial(_descend, loss), given


def by_hand(mesh: Mesh) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return a step in shard_map, which sums the gradients itself.

    Each device has weights of its own. Of weights that all share, JAX 0.6 and later sum the
    gradients already.
    """
    spec = PartitionSpec("x")

    def step(copies: Any, x: jax.Array) -> Any:
        weights = jax.tree.map(lambda copy: copy[0], copies)
        value, gradients = jax.value_and_grad(_loss)(weights, x)
        summed = jax.tree.map(lambda g: lax.psum(g, "x"), gradients)
        updated = jax.tree.map(lambda w, g: (w - RATE * g)[None], weights, summed)
        return updated, lax.psum(value, "x")

    mapped = checked(step, mesh, (spec, spec), (spec, PartitionSpec()))
    copies = jax.tree.map(lambda *each: jnp.stack(each), *map(parameters, range(mesh.size)))
    return mapped, jax.device_put((copies, tokens()), NamedSharding(mesh, spec))


def attention(mesh: Mesh) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Pallas's flash attention with its gradient: the kernels are lowered in Python, too."""
    del mesh
    from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention

    *given, out_gradient = ATTENTION.arrays()

    def weighted(q: Any, k: Any, v: Any) -> jax.Array:
        output = flash_attention(q, k, v, causal=True, sm_scale=ATTENTION.scale)
        return (output * out_gradient).sum()

    return jax.grad(weighted, argnums=(0, 1, 2)), tuple(map(jnp.asarray, given))
