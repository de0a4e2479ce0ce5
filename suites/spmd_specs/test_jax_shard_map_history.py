"""What JAX's users have reported of shard_map after an upgrade, each as the smallest program.

Each case names its thread, as those of ``test_jax_history.py`` do. What each device's own part
gives is computed by NumPy.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from suites.shared.global_arrays import mesh_of
from suites.shared.jax_releases import (
    checked,
    explicit,
    needs_explicit_axes,
    unreadable_before_0_4_30,
)

pytestmark = [
    pytest.mark.lanes("cpu", "virtual-*", "tpu"),
    pytest.mark.topologies("4"),
    pytest.mark.deadline(60),
    unreadable_before_0_4_30,
]


@pytest.mark.upstream("jax-ml/jax#36886")
def test_gradients_with_respect_to_weights_of_every_device() -> None:
    """Weights from outside of the function: each device has the gradient of its own examples."""
    mesh, spec = mesh_of(4), PartitionSpec("x")
    weights = np.array([1.0, 2.0], np.float32)
    x = np.arange(16, dtype=np.float32).reshape(8, 2) % 5

    def gradient(part: Any) -> Any:
        return jax.grad(lambda weights: (part @ weights).sum())(jnp.asarray(weights))[None]

    gradients = jax.jit(checked(gradient, mesh, (spec,), spec))(x)
    np.testing.assert_array_equal(gradients, x.reshape(4, 2, 2).sum(1))


@needs_explicit_axes
@pytest.mark.upstream("marin-community/marin#4455")
@pytest.mark.parametrize("columns", [None, "y"], ids=["rows", "rows-and-columns"])
def test_shard_map_gathers_what_its_specs_do_not_divide(columns: str | None) -> None:
    """Weights that lie in parts along two axes, to a function that wants whole rows of them."""
    mesh, whole_rows = explicit(mesh_of(2, 2)), PartitionSpec("x", None)
    weights = np.arange(32, dtype=np.float32).reshape(4, 8)
    with jax.set_mesh(mesh):
        placed = jax.device_put(weights, NamedSharding(mesh, PartitionSpec("x", columns)))
        summed = checked(lambda part: part.cumsum(1), mesh, (whole_rows,), whole_rows)
        result = jax.jit(summed)(placed)
    np.testing.assert_array_equal(result, weights.cumsum(1))


@pytest.mark.upstream("jax-ml/jax#29162")
def test_shard_map_over_a_value_from_outside() -> None:
    """Over explicit axes it is computed or refused: jax 0.6.0 and 0.6.1 end the process."""
    if not (in_mesh := getattr(jax, "set_mesh", None) or getattr(jax.sharding, "use_mesh", None)):
        pytest.skip("this release of JAX has no mesh of explicit axes")
    mesh, spec = explicit(mesh_of(4)), PartitionSpec("x")
    weights, x = np.arange(3, dtype=np.float32), np.arange(12, dtype=np.float32).reshape(4, 3)
    with in_mesh(mesh):
        outside = jax.device_put(weights, NamedSharding(mesh, PartitionSpec()))
        placed = jax.device_put(x, NamedSharding(mesh, spec))
        try:
            result = checked(lambda part: (outside * part).sum(1), mesh, (spec,), spec)(placed)
        except (NotImplementedError, ValueError):  # the error that the thread asked for
            return
    np.testing.assert_array_equal(result, x @ weights)


@pytest.mark.upstream("jax-ml/jax#28260")
def test_transpose_of_what_was_linearized_at_a_constant() -> None:
    """A Gauss-Newton product with each device's own tangent, at a point of all devices."""
    mesh, spec = mesh_of(4), PartitionSpec("x")

    def product(tangent: Any) -> Any:
        point = jnp.array([3.0])
        _, forward = jax.linearize(lambda x: (x**3).mean(), point)
        (back,) = jax.linear_transpose(forward, point)(forward(tangent))
        return back

    tangents = np.arange(4, dtype=np.float32)
    result = checked(product, mesh, (spec,), spec)(tangents)
    np.testing.assert_array_equal(result, tangents * 27**2)
