"""device_put's options as trees: what may share memory, what is given away, and where it was."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding

from suites.shared.global_arrays import Spec, mesh_of
from suites.shared.jax_releases import jitted, since_0_5

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("8"),
    pytest.mark.upstream("jax-ml/jax#16816"),
    since_0_5,
]
VALUE = (np.arange(64).reshape(8, 8) * 37 % 61).astype(np.float32)
needs_copies = pytest.mark.skipif(
    "may_alias" not in signature(jax.device_put).parameters,
    reason="device_put of this release of JAX neither donates nor copies",
)


def divided(*entries: Any) -> NamedSharding:
    return NamedSharding(mesh_of(2, 4), Spec(*entries))


PLACES: dict[str, Callable[[], Any]] = {
    "nowhere else": lambda: None,
    "a device": lambda: jax.devices()[3],
    "a sharding of it": lambda: SingleDeviceSharding(jax.devices()[3]),
}


@needs_copies
def test_copies_of_a_tree(subtests: pytest.Subtests) -> None:
    """Each leaf is the array itself, a copy, or given away, as its own option says."""
    for name, place in PLACES.items():
        arrays = {key: jax.device_put(VALUE + n, jax.devices()[3]) for n, key in enumerate("abc")}
        put = jax.device_put(
            arrays,
            place(),
            may_alias={"a": True, "b": False, "c": None},
            donate={"a": False, "b": False, "c": True},
        )
        with subtests.test(place=name):
            first = put["a"].unsafe_buffer_pointer()
            assert first == arrays["a"].unsafe_buffer_pointer()
            assert put["b"].unsafe_buffer_pointer() != arrays["b"].unsafe_buffer_pointer()
            assert put["b"].sharding == arrays["b"].sharding
            for n, key in enumerate("abc"):
                np.testing.assert_array_equal(put[key], VALUE + n)
                assert put[key].devices() == {jax.devices()[3]}
            arrays["b"].delete()
            np.testing.assert_array_equal(put["b"], VALUE + 1)
    with subtests.test("uncommitted"):
        free = jnp.asarray(VALUE)
        copied = jax.device_put(free, may_alias=False)
        assert copied is not free
        assert jax.device_put(free) is free
        both = jax.jit(jnp.add)(copied, jax.device_put(VALUE, jax.devices()[5]))
        assert both.devices() == {jax.devices()[5]}, "a copy is no more committed than the array"
    with subtests.test("divided"):
        array = jax.device_put(VALUE, divided("x", "y"))
        copied = jax.device_put(array, may_alias=False)
        array.delete()
        assert copied.sharding == divided("x", "y")
        np.testing.assert_array_equal(copied, VALUE)


@needs_copies
def test_copies_to_another_device(subtests: pytest.Subtests) -> None:
    for options in ({"may_alias": False}, {"donate": True}, {"may_alias": None}):
        array = jax.device_put(VALUE, jax.devices()[1])
        moved = jax.device_put(array, jax.devices()[6], **options)
        with subtests.test(**options):
            assert (moved.devices(), moved.committed) == ({jax.devices()[6]}, True)
            np.testing.assert_array_equal(moved, VALUE)


@needs_copies
def test_cotangents_go_back(subtests: pytest.Subtests) -> None:
    """The cotangent of a moved array is where the array was, or where a caller says that it was."""
    first, second, third, *_ = jax.devices()
    whole, rows = divided(), divided("x")

    def back(source: Any, target: Any, src: Any = None, **options: Any) -> Any:
        def forward(tree: Any) -> Any:
            return jax.device_put(tree, target, src=src, **options)

        tree = {"a": jax.device_put(VALUE, source), "b": [jax.device_put(VALUE[0], source)]}
        out, transposed = jax.vjp(forward, tree)
        (cotangents,) = transposed(jax.tree.map(lambda leaf: leaf * 2, out))
        np.testing.assert_array_equal(cotangents["a"], VALUE * 2)
        np.testing.assert_array_equal(cotangents["b"][0], VALUE[0] * 2)
        return cotangents

    for name, target, source in (
        ("device", second, first),
        ("rows", rows, whole),
        ("back to rows", whole, rows),
    ):
        place = source if source is not first else SingleDeviceSharding(first)
        for options in ({}, {"may_alias": False}):
            with subtests.test("of the array", name=name, **options):
                cotangents = back(source, target, **options)
                assert cotangents["a"].sharding.is_equivalent_to(place, 2)
                assert cotangents["b"][0].sharding.is_equivalent_to(place, 1)
    with subtests.test("of the caller"):
        cotangents = back(first, second, third)
        assert [leaf.devices() for leaf in jax.tree.leaves(cotangents)] == [{third}] * 2
        cotangents = back(first, second, {"a": third, "b": None})
        assert cotangents["a"].devices() == {third}
        cotangents = back(first, second, {"a": third, "b": [first]})
        assert [leaf.devices() for leaf in jax.tree.leaves(cotangents)] == [{third}, {first}]
    with subtests.test("given away"), pytest.raises(ValueError, match="donate"):
        back(first, second, donate=True)


def test_texts_are_refused(subtests: pytest.Subtests) -> None:
    """An array of texts has a place on CPUs alone."""
    if not hasattr(np.dtypes, "StringDType") or jax.__version_info__ < (0, 5, 2):
        pytest.skip("neither NumPy before 2.0 nor JAX before 0.5.2 has arrays of texts")
    texts = np.array(["a", "bc"], np.dtypes.StringDType())
    places = {
        "device": jax.devices()[1],
        "sharding": SingleDeviceSharding(jax.devices()[1]),
        "rows": NamedSharding(mesh_of(8), Spec()),
    }
    for name, place in places.items():
        with subtests.test(name=name), pytest.raises(TypeError, match="CPU"):
            jax.device_put(texts, place)


def test_layouts(subtests: pytest.Subtests) -> None:
    """A format without a layout is the place in it."""
    layouts = pytest.importorskip("jax.experimental.layout")
    if not hasattr(layouts, "Format"):
        pytest.skip("this release of JAX has another name for formats")
    at = divided("x", "y")
    for name, value in (("numbers", VALUE), ("array", jax.device_put(VALUE, divided("y")))):
        with subtests.test(name=name):
            put = jax.device_put(value, layouts.Format(None, at))
            assert put.sharding == at
            np.testing.assert_array_equal(put, VALUE)
    with subtests.test("nowhere"):
        put = jax.device_put(VALUE, layouts.Format())
        assert put.devices() == {jax.devices()[0]}
        np.testing.assert_array_equal(put, VALUE)


def test_memory_spaces(subtests: pytest.Subtests) -> None:
    """An array moves between the memories of its own devices, and back."""
    spaces = getattr(getattr(jax, "memory", None), "Space", None)
    if spaces is None:
        pytest.skip("this release of JAX has no spaces")
    for name, place in (("one", jax.devices()[2]), ("divided", divided("x", "y"))):
        array = jax.device_put(VALUE, place)
        moves: dict[str, Callable[[Any, Any], Any]] = {
            "at once": jax.device_put,
            "in a step": lambda value, to: jax.jit(lambda v: jax.device_put(v, to))(value),
        }
        for way, move in moves.items():
            with subtests.test(way, place=name):
                there = move(array, spaces.Host)
                assert there.sharding == array.sharding.with_memory_kind("pinned_host")
                assert there.devices() == array.devices()
                np.testing.assert_array_equal(there, VALUE)
                back = move(there, spaces.Device)
                assert back.sharding.memory_kind == "device"
                assert back.sharding.is_equivalent_to(array.sharding, 2)
                np.testing.assert_array_equal(back, VALUE)
    with subtests.test("types"):
        types = jax.eval_shape(lambda v: jax.device_put(v, spaces.Host), VALUE)
        assert types.shape == VALUE.shape
        jaxpr = jax.make_jaxpr(lambda v: jax.device_put(v, spaces.Host))(VALUE)
        assert jaxpr.out_avals[0].memory_space == spaces.Host
    with subtests.test("beside others"):
        host = divided("x").with_memory_kind("pinned_host")
        first, second = jax.jit(lambda v: (jax.device_put(v * 2, host), v + 1))(VALUE)
        assert (first.sharding, second.sharding.memory_kind) == (host, "device")
        np.testing.assert_array_equal(first, VALUE * 2)
        np.testing.assert_array_equal(second, VALUE + 1)


def test_devices_of_the_steps_within(subtests: pytest.Subtests) -> None:
    """A step runs on the devices that anything in it names, and refuses two sets of them."""
    mesh = mesh_of(8)
    at = NamedSharding(mesh, Spec("x"))
    few = NamedSharding(Mesh(np.array(jax.devices()[:2]), ("x",)), Spec("x"))
    given = jax.device_put(VALUE, few)
    host = at.with_memory_kind("pinned_host")

    def looped(v: Any) -> Any:
        step = jax.jit(lambda u: u * 2, out_shardings=at)
        return jax.lax.fori_loop(0, 1, lambda _, u: step(u), v)

    ways: dict[str, Callable[[Any], Any]] = {
        "results": jax.jit(lambda v: v * 2, out_shardings=at),
        "arguments": jax.jit(lambda v: v * 2, in_shardings=at),
        "constraint": lambda v: jax.lax.with_sharding_constraint(v, at) * 2,
        "map": jitted(lambda v: v * 2, mesh, (Spec("x"),), Spec("x")),
        "memory": lambda v: jax.device_put(v * 2, host),
        "loop": looped,
    }
    for name, way in ways.items():
        with subtests.test(name=name):
            result = jax.jit(lambda v, way=way: way(v + 1))(VALUE)
            assert result.devices() == set(jax.devices())
            np.testing.assert_array_equal(result, VALUE * 2 + 2)
        with subtests.test("two sets", name=name), pytest.raises(ValueError, match="devices"):
            jax.jit(lambda v, way=way: way(v + 1))(given)
