"""What device_put takes: other memories, formats without a layout, and texts, which it refuses."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import jax
import jax.numpy as jnp
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
]
VALUE = (np.arange(64).reshape(8, 8) * 37 % 61).astype(np.float32)
needs_copies = pytest.mark.skipif(
    "may_alias" not in signature(jax.device_put).parameters,
    reason="device_put of this release of JAX neither donates nor copies",
)


def divided(*entries: Any) -> NamedSharding:
    return NamedSharding(mesh_of(2, 4), Spec(*entries))


@needs_copies
def test_copies_to_another_device(subtests: pytest.Subtests) -> None:
    for options in ({"may_alias": False}, {"donate": True}, {"may_alias": None}):
        array = jax.device_put(VALUE, jax.devices()[1])
        moved = jax.device_put(array, jax.devices()[6], **options)
        with subtests.test(**options):
            assert (moved.devices(), moved.committed) == ({jax.devices()[6]}, True)
            np.testing.assert_array_equal(moved, VALUE)


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


@needs_copies
def test_wrong_options(subtests: pytest.Subtests) -> None:
    first, second, *_ = jax.devices()
    rows = divided("x")
    tree = {"a": VALUE, "b": VALUE[0]}
    wrong: dict[str, dict[str, Any]] = {
        "both": {"may_alias": True, "donate": True},
        "both of a leaf": {"may_alias": {"a": True, "b": None}, "donate": {"a": True, "b": False}},
        "an option of another tree": {"may_alias": {"c": True}},
        "a source of another tree": {"src": {"c": first}},
    }
    for name, of_call in wrong.items():
        with subtests.test(wrong=name), pytest.raises(ValueError):
            jax.device_put(tree, second, **of_call)
    for name, place in (("a place of another tree", {"a": rows}), ("text", "x"), ("uneven", rows)):
        with subtests.test(wrong=name), pytest.raises(ValueError):
            jax.device_put({"a": VALUE[:7], "b": VALUE}, place)
    _, back = jax.vjp(lambda of: jax.device_put(of, second, donate=True), jnp.asarray(VALUE))
    with subtests.test("given away and back"), pytest.raises(ValueError, match="donate"):
        back(VALUE)


@needs_copies
def test_copies_are_no_more_committed() -> None:
    free = jnp.asarray(VALUE)
    copied = jax.device_put(free, may_alias=False)
    assert copied is not free
    assert jax.device_put(free) is free
    both = jax.jit(jnp.add)(copied, jax.device_put(VALUE, jax.devices()[5]))
    assert both.devices() == {jax.devices()[5]}
