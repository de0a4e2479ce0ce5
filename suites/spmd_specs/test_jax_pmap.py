"""JAX's pmap and the arrays that are divided for it, as NumPy computes them device by device."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from suites.shared.jax_releases import since_0_5, until_0_8

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("8"),
    pytest.mark.upstream("jax-ml/jax#1703"),
    pytest.mark.deadline(120),
    since_0_5,
]
REFUSALS = (AssertionError, LookupError, NameError, NotImplementedError, TypeError, ValueError)
VALUE = (np.arange(64).reshape(8, 8) * 29 % 31 - 9).astype(np.float32)


def test_values(subtests: pytest.Subtests) -> None:
    """Over dimensions of arguments and results, on some of the devices, with static arguments."""
    devices = jax.devices()
    with subtests.test("rows"):
        result = jax.pmap(lambda row: row * 2 - row[0])(VALUE)
        np.testing.assert_array_equal(result, VALUE * 2 - VALUE[:, :1])
        assert [shard.device for shard in result.addressable_shards] == devices
    with subtests.test("in double precision"):
        result = jax.pmap(lambda row: row * 2)(VALUE.astype(np.float64))
        np.testing.assert_array_equal(result, VALUE * 2)
        assert result.dtype == np.float32
    with subtests.test("columns to columns"):
        result = jax.pmap(lambda column: column.cumsum(), in_axes=1, out_axes=1)(VALUE)
        np.testing.assert_array_equal(result, VALUE.cumsum(0))
    with subtests.test("columns to rows"):
        result = jax.pmap(lambda column: column.cumsum(), in_axes=1)(VALUE)
        np.testing.assert_array_equal(result, VALUE.cumsum(0).T)
    with subtests.test("of a tree"):
        function = jax.pmap(
            lambda tree, w: {"a": tree["a"] + w, "b": tree["b"].sum()},
            in_axes=({"a": 0, "b": 1}, None),
            out_axes={"a": 1, "b": 0},
        )
        result = function({"a": VALUE, "b": VALUE}, np.arange(8.0, dtype=np.float32))
        np.testing.assert_array_equal(result["a"], (VALUE + np.arange(8)).T)
        np.testing.assert_array_equal(result["b"], VALUE.sum(0))
    with subtests.test("shared by all"):
        result = jax.pmap(lambda v: lax.psum(v, "i"), "i", out_axes=None)(VALUE)
        np.testing.assert_array_equal(result, VALUE.sum(0))
    with subtests.test("some devices"):
        chosen = [devices[6], devices[1], devices[3]]
        result = jax.pmap(lambda row: row + lax.axis_index("i"), "i", devices=chosen)(VALUE[:3])
        np.testing.assert_array_equal(result, VALUE[:3] + np.arange(3)[:, None])
        assert [shard.device for shard in result.addressable_shards] == chosen
        np.testing.assert_array_equal(jax.pmap(jnp.negative)(VALUE[:5]), -VALUE[:5])
    with subtests.test("static"):
        function = jax.pmap(lambda row, n, w: row * n + w, static_broadcasted_argnums=1)
        np.testing.assert_array_equal(function(VALUE, 3, VALUE[:, 0]), VALUE * 3 + VALUE[:, :1])
    with subtests.test("named arguments"):
        result = jax.pmap(lambda row, w: row - w)(VALUE, w=VALUE[:, 1])
        np.testing.assert_array_equal(result, VALUE - VALUE[:, 1:2])
    with subtests.test("donated"):
        given = jax.pmap(lambda row: row)(VALUE)
        result = jax.pmap(lambda row: row + 1, donate_argnums=0)(given)
        np.testing.assert_array_equal(result, VALUE + 1)
        assert given.is_deleted()
    with subtests.test("no result"):
        assert jax.pmap(lambda row: None)(VALUE) is None


def test_compiled_ahead(subtests: pytest.Subtests) -> None:
    """A map that was compiled says what it is, takes its own arguments alone, and wrong options."""

    def scaled(row: Any, factor: Any) -> Any:
        return row * factor

    factor = np.float32(3)
    lowered = jax.pmap(scaled, in_axes=(0, None)).lower(VALUE, factor)
    for compiled in (lowered.compile(), lowered.compile()):
        with subtests.test("called"):
            np.testing.assert_array_equal(compiled(VALUE, factor), VALUE * 3)
    assert len(compiled.runtime_executable().local_devices()) == 8
    if jax.__version_info__ < (0, 8):
        text = lowered.as_text()
        assert "module @pmap_scaled" in text
        assert "mhlo.num_replicas = 8" in text
        assert re.findall(r"(%arg\d): \S+ {mhlo.is_same_data_across_replicas", text) == ["%arg1"]
    shape = re.escape("float32[8,8] and called with float32[8,7]")
    with subtests.test("another shape"), pytest.raises(TypeError, match=shape):
        compiled(VALUE[:, :7], factor)
    with subtests.test("no such option"), pytest.raises(Exception, match="xla_of_nobody"):
        lowered.compile({"xla_of_nobody": True})


def test_collectives(subtests: pytest.Subtests) -> None:
    """Along the axis, in groups of it, and along two axes of nested maps."""
    groups = [[0, 3, 5, 6], [1, 2, 4, 7]]
    in_groups = np.stack([VALUE[groups[n not in groups[0]]].sum(0) for n in range(8)])
    cases: dict[str, tuple[Callable[..., Any], Any]] = {
        "sum": (lambda v: lax.psum(v, "i"), np.broadcast_to(VALUE.sum(0), (8, 8))),
        "largest": (lambda v: lax.pmax(v, "i"), np.broadcast_to(VALUE.max(0), (8, 8))),
        "mean": (lambda v: lax.pmean(v, "i"), np.broadcast_to(VALUE.mean(0), (8, 8))),
        "gather": (lambda v: lax.all_gather(v, "i"), np.broadcast_to(VALUE, (8, 8, 8))),
        "scatter": (lambda v: lax.psum_scatter(v, "i"), VALUE.sum(0)),
        "exchange": (lambda v: lax.all_to_all(v, "i", 0, 0), VALUE.T),
        "ring": (
            lambda v: lax.ppermute(v, "i", [(n, (n + 1) % 8) for n in range(8)]),
            np.roll(VALUE, 1, 0),
        ),
        "groups": (lambda v: lax.psum(v, "i", axis_index_groups=groups), in_groups),
        "place": (lambda v: lax.axis_index("i") * lax.psum(1, "i"), np.arange(8) * 8),
    }  # fmt: skip
    for name, (fn, expected) in cases.items():
        with subtests.test(name=name):
            np.testing.assert_allclose(jax.pmap(fn, "i")(VALUE), expected, rtol=1e-6)
    pairs = VALUE.reshape(2, 4, 8)
    with subtests.test("beside vmap"):
        result = jax.vmap(jax.pmap(lambda v: v - lax.psum(v, "i"), "i"), 1, 1)(pairs)
        np.testing.assert_array_equal(result, pairs - pairs.sum(0, keepdims=True))
        inside = jax.pmap(jax.vmap(lambda v: v - lax.psum(v, "i")), "i")(pairs)
        np.testing.assert_array_equal(inside, pairs - pairs.sum(0, keepdims=True))


@until_0_8
def test_maps_of_old(subtests: pytest.Subtests) -> None:
    """Maps in maps, and of another dimension of a map's result."""
    pairs = VALUE.reshape(2, 4, 8)
    with subtests.test("nested"):
        nested = jax.pmap(jax.pmap(lambda u: lax.psum(u, "j") + 10 * lax.psum(u, "i"), "j"), "i")
        expected = pairs.sum(1, keepdims=True) + 10 * pairs.sum(0, keepdims=True)
        np.testing.assert_array_equal(nested(pairs), expected)
    with subtests.test("another dimension"):
        array = jax.pmap(lambda row: row * 2)(VALUE)
        np.testing.assert_array_equal(jax.pmap(lambda row: row, in_axes=1)(array), VALUE.T * 2)


@pytest.mark.long
def test_derivatives(subtests: pytest.Subtests) -> None:
    """Of maps, in maps, with weights of all devices, in a loop of steps and of a checkpoint."""
    w = np.arange(8, dtype=np.float32) / 8

    def loss(v: Any, w: Any) -> Any:
        return (jnp.sin(v) * w).sum()

    def total(v: Any, w: Any, of: Any = loss) -> Any:
        return jax.pmap(of, in_axes=(0, None))(v, w).sum()

    expected = np.cos(VALUE) * w, np.sin(VALUE).sum(0)
    with subtests.test("of a map"):
        for got, own in zip(jax.grad(total, (0, 1))(VALUE, w), expected, strict=True):
            np.testing.assert_allclose(got, own, rtol=1e-5, atol=1e-5)
    with subtests.test("of a checkpoint"):
        gradients = jax.grad(partial(total, of=jax.checkpoint(loss)), (0, 1))(VALUE, w)
        for got, own in zip(gradients, expected, strict=True):
            np.testing.assert_allclose(got, own, rtol=1e-5, atol=1e-5)
    with subtests.test("in a map"):
        step = jax.pmap(
            lambda v, w: w - lax.psum(jax.grad(loss, 1)(v, w), "i") / 8, "i", in_axes=(0, None)
        )
        np.testing.assert_allclose(step(VALUE, w)[5], w - expected[1] / 8, rtol=1e-5, atol=1e-6)
    with subtests.test("forward"):
        value, tangent = jax.jvp(jax.pmap(lambda u: u**2), (VALUE,), (VALUE,))
        np.testing.assert_allclose(value, VALUE**2)
        np.testing.assert_allclose(tangent, 2 * VALUE**2)
    with subtests.test("of a sum"):
        gradient = jax.grad(lambda v: (jax.pmap(lambda u: lax.psum(u, "i"), "i")(v) ** 2).sum())(
            VALUE
        )
        np.testing.assert_allclose(gradient, np.broadcast_to(2 * 8 * VALUE.sum(0), (8, 8)))
    with subtests.test("twice"):
        kept = jax.pmap(lambda v: v)(VALUE)
        _, back = jax.vjp(jax.pmap(jnp.sin), VALUE)
        for _ in range(2):
            np.testing.assert_allclose(back(kept)[0], np.cos(VALUE) * VALUE, rtol=1e-5, atol=1e-5)


def test_what_is_refused(subtests: pytest.Subtests) -> None:
    wrong: dict[str, Callable[[], Any]] = {
        "too many": lambda: jax.pmap(lambda v: v)(np.zeros((9, 2))),
        "two sizes": lambda: jax.pmap(lambda v, w: v)(VALUE, VALUE[:4]),
        "none": jax.pmap(lambda v: v),
        "a scalar": lambda: jax.pmap(lambda v: v)(np.float32(1)),
        "no axis": lambda: jax.pmap(lambda v: lax.psum(v, "j"), "i")(VALUE),
        "size": lambda: jax.pmap(lambda v: v, axis_size=4)(VALUE),
        "all unmapped": lambda: jax.pmap(lambda v: v, in_axes=None)(VALUE),
        "no function": lambda: jax.pmap(3)(VALUE),
        "devices": lambda: jax.pmap(lambda v: v, devices=jax.devices()[:4])(VALUE),
    }
    jax.devices()
    for name, operation in wrong.items():
        with subtests.test(name=name), pytest.raises(REFUSALS):
            operation()
    with subtests.test("not a number"), jax.debug_nans(True), pytest.raises(FloatingPointError):
        jax.pmap(jnp.log)(VALUE)


@pytest.mark.long
def test_arrays_of_a_map(subtests: pytest.Subtests) -> None:
    """Its results: read, indexed, given to other maps and to jit, and moved."""
    array = jax.pmap(lambda row: row * 2)(VALUE)
    with subtests.test("read"):
        np.testing.assert_array_equal(array, VALUE * 2)
        np.testing.assert_array_equal(np.stack(list(array)), VALUE * 2)
        for index in (0, 5, -1, (3,), (slice(None), 2), slice(2, 5), (4, 4), (1, slice(3, 6))):
            np.testing.assert_array_equal(array[index], 2 * VALUE[index])
        assert not array.is_fully_replicated
        for number, shard in enumerate(array.addressable_shards):
            np.testing.assert_array_equal(np.squeeze(shard.data), VALUE[number] * 2)
            np.testing.assert_array_equal(np.squeeze((VALUE * 2)[shard.index]), VALUE[number] * 2)
            assert shard.replica_id == 0
    with subtests.test("used"):
        np.testing.assert_array_equal(jax.pmap(lambda row: row + 1)(array), VALUE * 2 + 1)
        np.testing.assert_array_equal(jax.jit(lambda v: v.T + 1)(array), VALUE.T * 2 + 1)
        np.testing.assert_array_equal(array + 1, VALUE * 2 + 1)
        moved = jax.device_put(array, jax.devices()[3])
        np.testing.assert_array_equal(moved, VALUE * 2)
        assert moved.devices() == {jax.devices()[3]}
        again = jax.device_put(np.asarray(array) / 2, array.sharding)
        assert again.sharding == array.sharding
        assert hash(again.sharding) == hash(array.sharding)
        np.testing.assert_array_equal(again, VALUE)
        assert jax.pmap(lambda v: v)(VALUE[:4]).sharding != array.sharding
    with subtests.test("keys"):
        keys = jax.random.split(jax.random.key(1), 8)
        drawn = jax.pmap(lambda key: jax.random.uniform(key, (2,)))(keys)
        np.testing.assert_array_equal(drawn, jax.vmap(lambda k: jax.random.uniform(k, (2,)))(keys))
        folded = jax.pmap(lambda key: jax.random.fold_in(key, 3))(keys)
        expected = jax.vmap(lambda key: jax.random.fold_in(key, 3))(keys)
        numbers = jax.random.key_data(expected)
        np.testing.assert_array_equal(jax.random.key_data(folded), numbers)
        for number, shard in enumerate(folded.addressable_shards):
            assert shard.device == jax.devices()[number]
            np.testing.assert_array_equal(
                np.squeeze(jax.random.key_data(shard.data)), numbers[number]
            )
            assert folded.sharding.devices_indices_map((8,))[shard.device] == shard.index[:1]


@until_0_8
def test_put_on_devices(subtests: pytest.Subtests) -> None:
    """device_put_sharded, device_put_replicated and the sharding of a map."""
    devices = [jax.devices()[n] for n in (3, 0, 6)]
    of = jax.sharding.PmapSharding
    with subtests.test("sharded"):
        shards = [{"a": VALUE[n], "b": float(n)} for n in range(3)]
        put = jax.device_put_sharded(shards, devices)
        np.testing.assert_array_equal(put["a"], VALUE[:3])
        np.testing.assert_array_equal(put["b"], [0, 1, 2])
        assert [shard.device for shard in put["a"].addressable_shards] == devices
        np.testing.assert_array_equal(jax.pmap(lambda v: v, devices=devices)(put["a"]), VALUE[:3])
    with subtests.test("replicated"):
        put = jax.device_put_replicated({"a": VALUE[1], "b": jnp.float32(2)}, devices)
        np.testing.assert_array_equal(put["a"], np.stack([VALUE[1]] * 3))
        np.testing.assert_array_equal(put["b"], [2, 2, 2])
        assert [shard.device for shard in put["a"].addressable_shards] == devices
    wrong: dict[str, Callable[[], Any]] = {
        "few": lambda: jax.device_put_sharded([VALUE], devices),
        "array": lambda: jax.device_put_sharded(VALUE[:3], devices),
        "unequal": lambda: jax.device_put_sharded([VALUE, VALUE[0], VALUE], devices),
        "nowhere": lambda: jax.device_put_replicated(VALUE, []),
        "another size": lambda: of.default((8, 3)).shard_shape((4, 3)),
        "no devices": lambda: of.default((3, 2), sharded_dim=None),
        "memory": lambda: of.default((8, 3)).with_memory_kind("pinned_host"),
    }
    for name, operation in wrong.items():
        with subtests.test(refused=name), pytest.raises(REFUSALS):
            operation()
    with subtests.test("keys"):
        keys = jax.random.split(jax.random.key(1), 3)
        put = jax.device_put_sharded(list(keys), devices)
        np.testing.assert_array_equal(jax.random.key_data(put), jax.random.key_data(keys))
        put = jax.device_put_replicated(keys[0], devices)
        assert put.shape == (3,)
        np.testing.assert_array_equal(jax.random.key_data(put)[2], jax.random.key_data(keys[0]))
    with subtests.test("sharding"):
        default, column = of.default((8, 3)), of.default((3, 8), sharded_dim=1)
        chosen = of.default((3, 2), devices=devices)
        assert (default.num_devices, column.num_devices, chosen.num_devices) == (8, 8, 3)
        assert default == of.default((8, 3)) != column
        assert hash(default) == hash(of.default((8, 3)))
        assert chosen.device_set == set(devices)
        assert default.is_fully_addressable
        assert not default.is_fully_replicated
        assert default.shard_shape((8, 3)) in ((3,), (1, 3))
        assert default.is_equivalent_to(of.default((8, 3)), 2)
        assert not default.is_equivalent_to(column, 2)
        indices = column.devices_indices_map((3, 8))
        for number, device in enumerate(jax.devices()):
            np.testing.assert_array_equal(np.squeeze(VALUE[:3][indices[device]]), VALUE[:3, number])
        np.testing.assert_array_equal(
            jax.device_put(VALUE[:3], of.default((3, 8), devices=devices)),
            VALUE[:3],
        )
        whole = of.default((3, 2), sharded_dim=None, devices=devices)
        assert whole.is_fully_replicated


def test_without_jit(subtests: pytest.Subtests) -> None:
    """As with it: a function is debugged operation by operation."""
    with jax.disable_jit():
        cases: dict[str, tuple[Any, Any]] = {
            "rows": (jax.pmap(lambda row: row * 2 - row[0])(VALUE), VALUE * 2 - VALUE[:, :1]),
            "sum": (jax.pmap(lambda v: v - lax.psum(v, "i"), "i")(VALUE), VALUE - VALUE.sum(0)),
            "columns": (jax.pmap(lambda c: c + 1, in_axes=1, out_axes=1)(VALUE), VALUE + 1),
            "place": (
                jax.pmap(lambda v: v[0] * lax.axis_index("i"), "i")(VALUE),
                VALUE[:, 0] * np.arange(8),
            ),
            "constant": (jax.pmap(lambda v: jnp.float32(3))(VALUE), np.full(8, 3)),
            "shared": (
                jax.pmap(lambda v, w: v * w, in_axes=(0, None))(VALUE, VALUE[0]),
                VALUE * VALUE[0],
            ),
        }
        devices = jax.devices()[::-1]
        backwards = jax.pmap(lambda v: v - lax.psum(v, "i"), "i", devices=devices)(VALUE)
        for name, options in {"donated": {"donate_argnums": 0}, "size": {"axis_size": 8}}.items():
            cases[name] = jax.pmap(lambda v: v + 1, **options)(VALUE), VALUE + 1
    cases["backwards"] = backwards, VALUE - VALUE.sum(0)
    for name, (got, expected) in cases.items():
        with subtests.test(name=name):
            np.testing.assert_array_equal(got, expected)
    assert [shard.device for shard in backwards.addressable_shards] == devices


@until_0_8
@pytest.mark.upstream("jax-ml/jax#2926")
def test_within_jit(subtests: pytest.Subtests) -> None:
    """Whole arrays are divided for the map; each of its devices has the whole result."""

    def place(v: Any, w: Any) -> Any:
        return v * lax.axis_index("i") - lax.psum(w, "i")

    mapped = jax.pmap(place, "i", in_axes=(1, 0))
    warns = pytest.warns(UserWarning, match="includes a pmap")
    for count in (8, 2):
        with subtests.test(count=count):
            with warns:
                result = jax.jit(lambda v, w: mapped(v, w) + 1)(VALUE[:, :count], VALUE[:count])
            own = VALUE[:, :count].T * np.arange(count)[:, None] - VALUE[:count].sum(0) + 1
            shards = result.addressable_shards
            assert result.committed
            assert [shard.device for shard in shards] == jax.devices()[:count]
            for shard in shards:
                np.testing.assert_array_equal(shard.data, own)
            at = result.sharding
            assert (at.is_fully_replicated, at.is_fully_addressable) == (True, True)
            doubled = jax.jit(lambda v: v * 2, in_shardings=at, out_shardings=at)(own)
            for shard in doubled.addressable_shards:
                np.testing.assert_array_equal(shard.data, own * 2)
            for same in (doubled.sharding, jax.jit(lambda v: v + 1)(result).sharding):
                assert same == at
                assert hash(same) == hash(at)
    with warns:
        assert "num_replicas = 8" in jax.jit(mapped).lower(VALUE, VALUE).as_text()
    with subtests.test("too many"), warns, pytest.raises(ValueError, match="requires 9 replicas"):
        jax.jit(jax.pmap(lambda v: v))(np.zeros((9, 2)))


@until_0_8
def test_on_another_platform(subtests: pytest.Subtests) -> None:
    """The host's processors are devices, too: named, listed, and operation by operation."""
    jax.config.update("jax_num_cpu_devices", 8)
    hosts, given = jax.devices("cpu"), jax.pmap(lambda v: v * 2)(VALUE)

    def centred(v: Any) -> Any:
        return v - lax.psum(v, "i")

    by_name = jax.pmap(centred, "i", backend="cpu")
    with jax.disable_jit():
        without_jit = by_name(VALUE), VALUE, hosts
    cases: dict[str, tuple[Any, Any, Any]] = {
        "named": (by_name(VALUE), VALUE, hosts),
        "listed": (jax.pmap(centred, "i", devices=hosts[::-1])(VALUE), VALUE, hosts[::-1]),
        "without jit": without_jit,
        "moved": (by_name(given), VALUE * 2, hosts),
        "some": (jax.pmap(centred, "i", devices=hosts[2:4])(VALUE[:2]), VALUE[:2], hosts[2:4]),
    }
    for name, (got, value, devices) in cases.items():
        with subtests.test(name=name):
            np.testing.assert_array_equal(got, value - value.sum(0))
            assert [shard.device for shard in got.addressable_shards] == devices
    with subtests.test("in jit of the other"), pytest.raises(ValueError, match="backend"):
        jax.jit(by_name)(VALUE)
