"""device_put's options as trees: what may share memory, and what is given away."""

from __future__ import annotations

from inspect import signature
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, SingleDeviceSharding

from suites.shared.global_arrays import Spec, mesh_of
from suites.shared.jax_releases import since_0_5

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("8"),
    pytest.mark.upstream("jax-ml/jax#16816"),
    since_0_5,
    pytest.mark.skipif(
        "may_alias" not in signature(jax.device_put).parameters,
        reason="device_put of this release of JAX neither donates nor copies",
    ),
]
VALUE = (np.arange(64).reshape(8, 8) * 37 % 61).astype(np.float32)


def divided(*entries: Any) -> NamedSharding:
    return NamedSharding(mesh_of(2, 4), Spec(*entries))


def check(leaf: Any, value: np.ndarray, place: Any) -> None:
    """Check an array's numbers, and that it is committed to that place."""
    place = SingleDeviceSharding(place) if isinstance(place, jax.Device) else place
    assert leaf.sharding.is_equivalent_to(place, leaf.ndim), leaf.sharding
    assert getattr(leaf, "committed", True)
    np.testing.assert_array_equal(leaf, value)


def test_trees_of_options(subtests: pytest.Subtests) -> None:
    """Each leaf goes to its own place, as a copy or not."""
    first, second, third, *_ = jax.devices()
    rows = divided("x")
    tree = {"a": VALUE, "b": [VALUE[0], VALUE[:, 1]]}
    with subtests.test("one place"):
        for leaf, own in zip(
            jax.tree.leaves(jax.device_put(tree, second)), jax.tree.leaves(tree), strict=True
        ):
            check(leaf, own, second)
    given = jax.device_put(tree, {"a": rows, "b": [second, third]})
    with subtests.test("places"):
        check(given["a"], VALUE, rows)
        check(given["b"][0], VALUE[0], second)
        check(given["b"][1], VALUE[:, 1], third)
    with subtests.test("nowhere"):
        same = jax.device_put(given)
        leaves = zip(jax.tree.leaves(same), jax.tree.leaves(given), strict=True)
        assert all(a is b for a, b in leaves)
        put = jax.device_put(VALUE[0])
        assert (put.devices(), getattr(put, "committed", False)) == ({first}, False)
    options = {"may_alias": {"a": True, "b": [False, None]}, "donate": {"a": False, "b": False}}
    copies = jax.device_put(given, {"a": rows, "b": [None, third]}, **options)
    with subtests.test("copies"):
        assert copies["a"] is given["a"]
        own, copied = (each["b"][0].unsafe_buffer_pointer() for each in (given, copies))
        assert own != copied
        own, shared = (each["b"][1].unsafe_buffer_pointer() for each in (given, copies))
        assert own == shared
        check(copies["b"][0], VALUE[0], second)
    moved = jax.device_put(given, {"a": divided(None, "x"), "b": [first, rows]}, donate=True)
    with subtests.test("moved"):
        check(moved["a"], VALUE, divided(None, "x"))
        check(moved["b"][0], VALUE[0], first)
        check(moved["b"][1], VALUE[:, 1], rows)
