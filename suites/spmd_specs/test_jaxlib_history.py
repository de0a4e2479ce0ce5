"""What JAX's users have reported of jaxlib's XLA: wrong numbers of programs over several devices.

Each case names its thread, as those of ``test_jax_history.py`` do. They run on lane cpu alone,
since the virtual TPU has one XLA for all releases of jaxlib.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from suites.shared.global_arrays import mesh_of

pytestmark = [
    pytest.mark.lanes("cpu"),
    pytest.mark.topologies("4"),
    pytest.mark.deadline(60),
]


@pytest.mark.upstream("jax-ml/jax#18434")
@pytest.mark.parametrize("shape", [(4, 1), (2, 2), (1, 4)], ids=["rows", "both", "columns"])
def test_rows_that_move_up_by_one(shape: tuple[int, int]) -> None:
    """The first row of each part moves to the device before; the last row is new."""
    x = np.arange(64, dtype=np.float32).reshape(8, 8)

    def moved(x: Any, last: Any) -> Any:
        return x.at[:-1].set(x[1:]).at[-1].set(last)

    placed = jax.device_put(x, NamedSharding(mesh_of(*shape), PartitionSpec("x", "y")))
    moved_rows = jax.jit(moved)(placed, np.float32(-1))
    np.testing.assert_array_equal(moved_rows, np.concatenate([x[1:], np.full((1, 8), -1)]))


@pytest.mark.upstream("jax-ml/jax#20088")
def test_a_donated_array_that_two_results_need() -> None:
    """One result takes its memory while the other, divided, is still to be read out of it."""
    mesh, x = mesh_of(4), np.arange(8, dtype=np.float32)
    everywhere, along = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ([], ["x"]))

    def both(x: Any) -> tuple[Any, Any]:
        return x + 1, lax.with_sharding_constraint(x, along)

    one_more, divided = jax.jit(both, donate_argnums=0)(jax.device_put(x, everywhere))
    np.testing.assert_array_equal(one_more, x + 1)
    np.testing.assert_array_equal(divided, x)


@pytest.mark.upstream("jax-md/jax-md#412", "jax-ml/jax#39103")
def test_sums_of_many_rows() -> None:
    """Each device has one row more than a multiple of 32,768, of products with a small matrix."""
    x, matrix = np.zeros((4 * 32769, 3), np.float32), np.eye(3, dtype=np.float32)
    x[:, 0] = np.arange(len(x)) % 2048

    def squares(x: Any) -> Any:
        return jax.vmap(lambda row: jnp.sum((matrix @ row) ** 2))(x)

    placed = jax.device_put(x, NamedSharding(mesh_of(4), PartitionSpec("x")))
    np.testing.assert_array_equal(jax.jit(squares)(placed), np.square(x).sum(1))
