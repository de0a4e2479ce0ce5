"""Results that are divided over devices in a way that no spec over their mesh says.

An array whose rows are on eight devices, reshaped to two by four blocks, stays where it is. JAX has
a sharding of another type for that. Which part each device has follows from NumPy's reshape.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding

from suites.shared.global_arrays import Spec, mesh_of
from suites.shared.jax_releases import since_0_5
from suites.spmd_specs.sharding_values import check_values

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("8"),
    pytest.mark.upstream("jax-ml/jax#26946"),
    since_0_5,
    pytest.mark.skipif(
        jax.__version_info__ >= (0, 9), reason="JAX from 0.9 on has no shardings but those of specs"
    ),
]
VALUE = (np.arange(64).reshape(8, 8) * 37 % 61).astype(np.float32)
BY_COLUMN = np.arange(8).reshape(2, 4).T
# The rows' spec over two by four devices, the first dimensions of the result, and the number of the
# device that has each place of these. A third number is that of the replica.
WAYS: dict[str, tuple[Any, tuple[int, ...], np.ndarray]] = {
    "rows": (Spec(("x", "y")), (2, 4), np.arange(8).reshape(2, 4)),
    "more rows": (Spec(("x", "y")), (4, 2), np.arange(8).reshape(4, 2)),
    "columns": (Spec(("y", "x")), (2, 4), BY_COLUMN.reshape(2, 4)),
    "pairs": (Spec("y"), (2, 2, 2), BY_COLUMN.reshape(2, 2, 2)),
}


def regrouped(name: str, value: Any = VALUE) -> Any:
    spec, shape, _ = WAYS[name]
    array = jax.device_put(value, NamedSharding(mesh_of(2, 4), spec))
    return jax.jit(lambda v: v.reshape(*shape, *v.shape[1:]))(array)


def check_parts(array: Any, name: str, value: np.ndarray) -> None:
    """Check that each device has its place of the first two dimensions."""
    places = WAYS[name][2]
    shards = {shard.device: shard for shard in array.addressable_shards}
    indices = array.sharding.devices_indices_map(array.shape)
    assert array.shape == value.shape
    assert array.sharding.num_devices == len(shards) == 8
    for place, number in np.ndenumerate(places):
        shard = shards[device := jax.devices()[number]]
        own = value[place[:2]][None, None]
        np.testing.assert_array_equal(shard.data, own)
        np.testing.assert_array_equal(value[shard.index], own)
        assert shard.index == indices[device]
        assert shard.replica_id == (place[2] if places.ndim == 3 else 0)
    np.testing.assert_array_equal(array, value)


@pytest.mark.parametrize("name", WAYS)
def test_regrouped(name: str, subtests: pytest.Subtests) -> None:
    """What is divided so is read, and other arrays are put, computed and left in its way."""
    array = regrouped(name)
    at, value = array.sharding, VALUE.reshape(array.shape)
    check_parts(array, name, value)
    assert at.shard_shape(array.shape) == (1, 1, *array.shape[2:])
    assert at.device_set == at.addressable_devices == set(jax.devices())
    assert (at.is_fully_addressable, at.is_fully_replicated) == (True, False)
    ways: dict[str, Any] = {
        "put": lambda: jax.device_put(value * 2, at),
        "moved": lambda: jax.device_put(jax.device_put(value * 2, jax.devices()[3]), at),
        "computed": lambda: jax.jit(lambda v: v * 2)(array),
        "taken": lambda: jax.jit(lambda v: v * 2, in_shardings=at)(jnp.asarray(value)),
        "returned": lambda: jax.jit(lambda v: v * 2, out_shardings=at)(value),
        "in trees": lambda: jax.jit(
            lambda v, w: {"a": v * 2, "b": [w]},
            in_shardings=(at, None),
            out_shardings={"a": at, "b": None},
        )(value, VALUE)["a"],
        "constrained": lambda: jax.jit(lambda v: lax.with_sharding_constraint(v * 2, at))(value),
    }
    for way, make in ways.items():
        with subtests.test(way=way):
            check_parts(result := make(), name, value * 2)
            assert result.sharding.is_equivalent_to(at, value.ndim)
    with subtests.test("too few dimensions"), pytest.raises(ValueError, match="rank"):
        jax.device_put(VALUE[0], at)


def test_equivalent_to_specs_of_another_mesh() -> None:
    """Over two by two by two devices a spec says the same."""
    cube = Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("x", "y", "z"))
    specs = {
        "rows": Spec("x", ("y", "z")),
        "more rows": Spec(("x", "y"), "z"),
        "columns": Spec("y", ("z", "x")),
        "pairs": Spec("y", "z"),
    }
    back = Mesh(cube.devices[::-1], cube.axis_names)
    for name, (_, shape, _) in WAYS.items():
        at, rank = regrouped(name).sharding, len(shape) + 1
        for other, spec in specs.items():
            same = NamedSharding(cube, spec)
            assert at.is_equivalent_to(same, rank) == (name == other)
            assert same.is_equivalent_to(at, rank) == (name == other)
            assert not at.is_equivalent_to(same.with_memory_kind("pinned_host"), rank)
            assert not at.is_equivalent_to(NamedSharding(back, spec), rank)


def test_transposed_over_three_axes() -> None:
    """A result whose devices a spec can say has that spec, whichever axes are next to others."""
    cube = Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("x", "y", "z"))
    for entries in (
        *((("x", "y", "z"), None), (("z", "y"), "x"), ("y", ("x", "z")), ("z", "x")),
        *((("y", "x"), "z"), (("z", "x", "y"), None), (None, ("y", "z"))),
    ):
        array = jax.device_put(VALUE, NamedSharding(cube, Spec(*entries)))
        result = jax.jit(lambda v: v.T)(array)
        expected = NamedSharding(cube, Spec(*entries[::-1]))
        assert result.sharding.spec == Spec(*entries[:0:-1], *[e for e in entries[:1] if e])
        assert result.sharding.devices_indices_map((8, 8)) == expected.devices_indices_map((8, 8))
        np.testing.assert_array_equal(result, VALUE.T)


def test_compared() -> None:
    kinds = [(name, kind) for name in WAYS for kind in ("device", "pinned_host")]
    check_values(lambda of: regrouped(of[0]).sharding.with_memory_kind(of[1]), kinds)
    for name, kind in kinds:
        assert regrouped(name).sharding.with_memory_kind(kind).memory_kind == kind


def test_keys(subtests: pytest.Subtests) -> None:
    """Random keys have numbers in a dimension of their own, which is not divided."""
    keys = jax.random.split(jax.random.key(5), 8)
    numbers = np.asarray(jax.random.key_data(keys))
    for name, (_, shape, _) in WAYS.items():
        array = regrouped(name, keys)
        own, at = numbers.reshape(*shape, -1), array.sharding
        ways: dict[str, Any] = {
            "regrouped": lambda array=array: array,
            "put": lambda at=at, shape=shape: jax.device_put(keys.reshape(shape), at),
            "returned": lambda at=at, shape=shape: jax.jit(
                lambda k: k.reshape(shape), out_shardings=at
            )(keys),
        }
        for way, make in ways.items():
            with subtests.test(name, way=way):
                result = make()
                assert result.shape == shape
                assert result.sharding.is_equivalent_to(at, len(shape))
                check_parts(jax.random.key_data(result), name, own)
                check_parts(jax.jit(jax.random.key_data)(result), name, own)
