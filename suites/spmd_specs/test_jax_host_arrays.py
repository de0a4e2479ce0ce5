"""A process's own arrays as parts of global ones, and back, in programs of one process."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding

from suites.shared.global_arrays import Spec, mesh_of
from suites.shared.jax_releases import since_0_5

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("8"),
    pytest.mark.upstream("jax-ml/jax#25783"),
    since_0_5,
]
VALUE = (np.arange(64).reshape(8, 8) * 37 % 61).astype(np.float32)
to_global = multihost_utils.host_local_array_to_global_array
to_local = multihost_utils.global_array_to_host_local_array


def test_in_one_process(subtests: pytest.Subtests) -> None:
    """All parts are here: a tree is placed by its specs, and what is placed comes back as it is."""
    mesh = mesh_of(2, 4)
    tree = {"a": VALUE, "b": [VALUE[0], VALUE[:, 1]]}
    specs = {"a": Spec("x", "y"), "b": Spec("y")}
    whole = to_global(tree, mesh, specs)
    for leaf, own, spec in zip(
        jax.tree.leaves(whole),
        jax.tree.leaves(tree),
        (Spec("x", "y"), Spec("y"), Spec("y")),
        strict=True,
    ):
        with subtests.test(spec=str(spec)):
            assert leaf.sharding == NamedSharding(mesh, spec)
            np.testing.assert_array_equal(leaf, own)
    back = to_local(whole, mesh, specs)
    assert jax.tree.structure(back) == jax.tree.structure(tree)
    assert all(a is b for a, b in zip(jax.tree.leaves(back), jax.tree.leaves(whole), strict=True))
    for convert in (to_global, to_local):
        with subtests.test("no spec", of=convert.__name__), pytest.raises(ValueError, match="None"):
            convert(VALUE, mesh, None)
        with subtests.test("another tree", of=convert.__name__), pytest.raises(ValueError):
            convert(tree, mesh, {"a": Spec()})


def test_within_programs(subtests: pytest.Subtests) -> None:
    """Each is a linear function that changes no number, also in a step, and knows its shape."""
    mesh = mesh_of(2, 4)
    at = Spec("x", "y")

    def step(x: Any) -> Any:
        whole = to_global(x * 2, mesh, at)
        return to_local(whole, mesh, at) + 1, whole.sum()

    def loss(x: Any) -> Any:
        return (to_local(to_global(x, mesh, at) ** 2, mesh, at) * VALUE).sum()

    values, total = jax.jit(step)(VALUE)
    np.testing.assert_array_equal(values, VALUE * 2 + 1)
    np.testing.assert_array_equal(total, 2 * VALUE.sum())
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(VALUE), 2 * VALUE * VALUE)
    for convert in (to_global, to_local):
        with subtests.test(of=convert.__name__):
            result = jax.eval_shape(lambda x, fn=convert: fn(x, mesh, at), VALUE)
            assert (result.shape, result.dtype) == (VALUE.shape, VALUE.dtype)
            (pulled,) = jax.linear_transpose(lambda x, fn=convert: fn(x, mesh, at), VALUE)(VALUE)
            np.testing.assert_array_equal(pulled, VALUE)


def test_mapped(subtests: pytest.Subtests) -> None:
    """The dimension that is mapped lies along the axis that it is mapped over, or along none."""
    mesh = mesh_of(2, 4)
    for place in (0, 1):
        for name, axis in (("whole", None), ("divided", "y")):
            mapped = jax.vmap(
                lambda row: to_global(row, mesh, Spec("x")), place, place, spmd_axis_name=axis
            )
            entries = ["x"]
            entries.insert(place, axis)  # type: ignore[arg-type]
            with subtests.test(name, place=place):
                result = mapped(VALUE)
                assert result.sharding.is_equivalent_to(NamedSharding(mesh, Spec(*entries)), 2)
                np.testing.assert_array_equal(result, VALUE)
                local = jax.vmap(lambda row: to_local(row, mesh, Spec("x")), place, place)(result)
                np.testing.assert_array_equal(local, VALUE)


def test_gathered(subtests: pytest.Subtests) -> None:
    """One process gathers what it has itself: with a dimension more, or joined to nothing."""
    mesh = mesh_of(2, 4)
    arrays = {
        "number": np.float32(3),
        "numbers": VALUE,
        "divided": jax.device_put(VALUE, NamedSharding(mesh, Spec("x", "y"))),
        "one": jax.device_put(VALUE, jax.devices()[3]),
    }
    for tiled in (False, True):
        gathered = multihost_utils.process_allgather(arrays, tiled=tiled)
        for name, value in arrays.items():
            with subtests.test(name=name, tiled=tiled):
                own = np.asarray(value)
                np.testing.assert_array_equal(gathered[name], own if tiled else own[None])
                assert isinstance(gathered[name], np.ndarray)
    for source in (None, True):
        shared = multihost_utils.broadcast_one_to_all(arrays, is_source=source)
        for name, value in arrays.items():
            np.testing.assert_array_equal(shared[name], np.asarray(value))
            assert isinstance(shared[name], np.ndarray)
    with subtests.test("equal"):
        multihost_utils.assert_equal(arrays, "one process alone")
