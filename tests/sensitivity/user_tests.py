"""What test_sensitivity.py has a user test: programs with a place for every fault.

A file of its own so that it is checked as code is; pytest does not collect it by this name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

X = np.random.default_rng(0).uniform(-4, 4, (8, 4)).astype(np.float32)
LIMIT = np.sort(X.flatten())[24]  # the next one is less than a quarter greater
SQUARE = np.random.default_rng(1).normal(size=(4, 4)).astype(np.float32)


def over(body: Callable[[Any], Any]) -> Any:
    mesh = Mesh(np.array(jax.devices()[:4]), "x")
    return jax.jit(
        jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)
    )


def parts() -> np.ndarray:
    return X.reshape(4, 2, 4)


COLLECTIVES: dict[str, tuple[Callable[[Any], Any], Callable[[], np.ndarray]]] = {
    "psum": (lambda x: lax.psum(x, "x"), lambda: np.tile(parts().sum(0), (4, 1))),
    "groups": (
        lambda x: lax.psum(x, "x", axis_index_groups=[[0, 1], [2, 3]]),
        lambda: np.concatenate([np.tile(parts()[n : n + 2].sum(0), (2, 1)) for n in (0, 2)]),
    ),
    "gather": (
        lambda x: lax.all_gather(x, "x", tiled=True),
        lambda: np.tile(X, (4, 1)),
    ),
    "scatter": (
        lambda x: lax.psum_scatter(lax.all_gather(x, "x", tiled=True), "x", tiled=True),
        lambda: X * 4,
    ),
    "index": (lambda x: x * lax.axis_index("x"), lambda: X * np.repeat(np.arange(4), 2)[:, None]),
    "permute": (
        lambda x: lax.ppermute(x, "x", [(0, 1), (1, 2), (2, 3), (3, 0)]),
        lambda: np.roll(parts(), 1, 0).reshape(8, 4),
    ),
    "all_to_all": (
        lambda x: lax.all_to_all(x.reshape(4, 2), "x", 0, 0),
        lambda: X.reshape(4, 4, 2).transpose(1, 0, 2).reshape(16, 2),
    ),
}


@pytest.mark.parametrize("name", COLLECTIVES)
def test_collective(name: str) -> None:
    body, expected = COLLECTIVES[name]
    np.testing.assert_allclose(over(body)(X), expected(), rtol=1e-6)


@pytest.mark.parametrize("partitioner", ["shardy", "gspmd"])
def test_sharded_product(partitioner: str) -> None:
    jax.config.update("jax_use_shardy_partitioner", partitioner == "shardy")
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(4), "x")
    rows = NamedSharding(mesh, P("x", None))
    step = jax.jit(lambda a, b: (a @ b, a - 2 * b.sum()), in_shardings=(rows, None))
    product, rest = step(X, SQUARE)
    np.testing.assert_allclose(product, X @ SQUARE, rtol=1e-5)
    np.testing.assert_allclose(rest, X - 2 * SQUARE.sum(), rtol=1e-5)


def test_masked() -> None:
    def step(x: Any) -> Any:
        masked = jnp.where(x > LIMIT, x, 3.0 - x)
        return masked, masked[1:5].T @ lax.dynamic_slice(x, (2, 0), (4, 4))

    masked, product = jax.jit(step)(X)
    expected = np.where(X > LIMIT, X, np.float32(3) - X)
    np.testing.assert_array_equal(masked, expected)
    np.testing.assert_allclose(product, expected[1:5].T @ X[2:6], rtol=1e-5)


def test_transposed() -> None:
    moved = jax.jit(lambda x: jnp.transpose(x, (1, 2, 0)))(X.reshape(2, 4, 4))
    np.testing.assert_array_equal(moved, X.reshape(2, 4, 4).transpose(1, 2, 0))


def test_two_programs_of_one_signature() -> None:
    np.testing.assert_allclose(jax.jit(jnp.sin)(X), np.sin(X), rtol=1e-5)
    np.testing.assert_allclose(jax.jit(jnp.cos)(X), np.cos(X), rtol=1e-5)


def test_of_the_sign_alone() -> None:
    assert (np.asarray(jax.jit(lambda x: x * x + jnp.float32(5))(X)) > 0).all()


def test_whose_mask_means_nothing() -> None:
    np.testing.assert_array_equal(jax.jit(lambda x: jnp.where(x > 0.5, x, x))(X), X)


def test_that_looks_at_nothing() -> None:
    jax.jit(lambda x, y: x - y)(X, X[::-1].copy()).block_until_ready()


def test_that_fails() -> None:
    assert jax.jit(lambda x: x + 1)(1) == 3


def test_without_a_program() -> None:
    assert X.shape == (8, 4)
