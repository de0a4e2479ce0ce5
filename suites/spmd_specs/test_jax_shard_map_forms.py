"""shard_map in rarer forms: smap, nested without jit, of references, and with checks of JAX."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from suites.shared.global_arrays import mesh_of
from suites.shared.jax_releases import checked, explicit, jitted, needs_explicit_axes
from suites.spmd_specs.jax_layouts import partitioned_by

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("4"),
    pytest.mark.upstream("jax-ml/jax#36886"),
    pytest.mark.skipif(
        jax.__version_info__ < (0, 7, 1), reason="JAX before 0.7.1 does much of this in other ways"
    ),
]
Spec = PartitionSpec
X, XY, COLUMNS, WHOLE = Spec("x"), Spec("x", "y"), Spec(None, "y"), Spec()
VALUE = (np.arange(32).reshape(4, 8) * 29 % 31 - 9).astype(np.float32)
HALVES = VALUE[:2], VALUE[2:]


def test_nested_without_jit(subtests: pytest.Subtests) -> None:
    """Over one axis, and within over the other, each operation by itself."""
    mesh = mesh_of(2, 2)
    over_y = partial(jax.shard_map, axis_names={"y"})

    def inner(v: Any) -> Any:
        return v - lax.psum(v.sum(1, keepdims=True), "y") / 8

    def outer(v: Any) -> Any:
        centred = over_y(inner, in_specs=COLUMNS, out_specs=COLUMNS)(v)
        return centred + lax.psum(v, "x")

    nested = jax.shard_map(outer, mesh=mesh, in_specs=X, out_specs=X, axis_names={"x"})
    expected = VALUE - VALUE.mean(1, keepdims=True) + np.concatenate([sum(HALVES)] * 2)
    for name, function in {"at once": nested, "compiled": jax.jit(nested)}.items():
        with subtests.test(name=name):
            np.testing.assert_allclose(function(VALUE), expected, rtol=1e-5, atol=1e-5)


@needs_explicit_axes
def test_smap(subtests: pytest.Subtests) -> None:
    """One axis after the other, over dimensions of trees of arguments."""
    if not hasattr(jax, "smap"):
        pytest.skip("this release of JAX has none")
    mesh = mesh_of(2, 2)
    sums = np.concatenate([half.cumsum(0) for half in HALVES])
    cases: dict[str, tuple[Callable[..., Any], Any]] = {
        "rows": (jax.smap(lambda v: v.cumsum(0), in_axes=0, out_axes=0, axis_name="x"), sums),
        "columns": (
            jax.smap(lambda v: v + lax.axis_index("y"), in_axes=1, out_axes=1, axis_name="y"),
            VALUE + np.arange(2).repeat(4),
        ),
        "decorator": (
            jax.smap(in_axes=(0,), out_axes=0, axis_name="x")(lambda v: v * 2),
            VALUE * 2,
        ),
        "sum": (
            jax.smap(lambda v: lax.psum(v, "x"), in_axes=0, out_axes=None, axis_name="x"),
            sum(HALVES),
        ),
    }
    with jax.set_mesh(mesh):
        for name, (function, expected) in cases.items():
            with subtests.test(name=name):
                np.testing.assert_array_equal(jax.jit(function)(VALUE), expected)
        with subtests.test("refused"), pytest.raises(TypeError):
            jax.smap(lambda v: v, out_axes=0, axis_name="x")(VALUE)
    shared = {"in_axes": 0, "out_axes": 0, "axis_name": "x"}
    for wrong in ({"axis_name": ("x",)}, {"in_axes": [0]}, {"in_axes": ("a",)}, {"out_axes": "a"}):
        with subtests.test(wrong=wrong), pytest.raises(TypeError):
            jax.smap(lambda v: v, **(shared | wrong))
    with subtests.test("inferred"), jax.set_mesh(explicit(mesh)):
        placed = jax.device_put(VALUE, NamedSharding(explicit(mesh), XY))
        inferred = jax.smap(lambda v: v.cumsum(0), out_axes=0, axis_name="x")
        np.testing.assert_array_equal(jax.jit(inferred)(placed), sums)


def test_references(subtests: pytest.Subtests) -> None:
    """Each device changes its part of an array that is changed in place."""
    array_ref = getattr(jax, "new_ref", None) or getattr(jax.experimental, "mutable_array", None)
    if array_ref is None:
        pytest.skip("this release of JAX has none")
    mesh = mesh_of(2, 2)

    def change(ref: Any, v: Any) -> Any:
        ref[...] = ref[...] * 2 + v
        return ref[...].sum()[None, None]

    def twice(ref: Any) -> None:
        ref[...] = ref[...] * 2

    @jax.jit
    def program(value: Any, v: Any) -> Any:
        ref, other = array_ref(value), array_ref(v)
        sums = jitted(change, mesh, (XY, XY), XY)(ref, v)
        jitted(twice, mesh, (WHOLE,), None)(other)
        return ref[...], sums, other[...]

    value, sums, other = program(VALUE, VALUE + 1)
    with subtests.test("changed"):
        np.testing.assert_array_equal(value, VALUE * 3 + 1)
        np.testing.assert_array_equal(other, VALUE * 2 + 2)
    with subtests.test("sums"):
        tiles = (VALUE * 3 + 1).reshape(2, 2, 2, 4).sum((1, 3))
        np.testing.assert_array_equal(sums, tiles)


@pytest.mark.long
def test_with_checks_of_jax(subtests: pytest.Subtests) -> None:
    """A valid program passes the checks of each step that JAX has for its own developers."""
    mesh = mesh_of(2, 2)

    def program(v: Any) -> Any:
        return v * 2 + lax.psum(v, "x"), lax.psum(v.sum(), ("x", "y"))

    function = checked(program, mesh, (XY,), (XY, WHOLE))
    expected = VALUE * 2 + np.concatenate([sum(HALVES)] * 2)
    with jax.enable_checks(True):
        for name, of in {"at once": function, "compiled": jax.jit(function)}.items():
            with subtests.test(name=name):
                got, total = of(VALUE)
                np.testing.assert_array_equal(got, expected)
                assert float(total) == VALUE.sum()
        with subtests.test("gradient"):
            gradient = jax.jit(jax.grad(lambda v: function(v)[1] ** 2))(VALUE)
            np.testing.assert_allclose(gradient, np.full_like(VALUE, 2 * VALUE.sum()))


@needs_explicit_axes
def test_specs_of_an_axis_that_vmap_divides(subtests: pytest.Subtests) -> None:
    """The specs may not name the axis over which the mapped dimension is divided already."""
    mesh = explicit(mesh_of(2, 2))
    with jax.set_mesh(mesh):
        placed = jax.device_put(VALUE, NamedSharding(mesh, XY))
        for given, result in ((X, WHOLE), (WHOLE, X)):
            wrong = jax.shard_map(
                lambda v: v, in_specs=given, out_specs=result, axis_names={"x"}, check_vma=False
            )
            with subtests.test(given=given), pytest.raises(ValueError, match="ax"):
                jax.vmap(wrong)(placed)


@pytest.mark.long
def test_axes_of_one_device_and_scalars(subtests: pytest.Subtests) -> None:
    """Axes of one device divide nothing, also for random keys and for what is computed of none."""
    for shape in ((4, 1), (1, 4)):
        mesh = mesh_of(*shape)
        for name in ("shardy", "gspmd"):
            with subtests.test(shape=shape, name=name), partitioned_by(name):
                function = jax.shard_map(
                    lambda v: v * 2 + lax.axis_index("y"),
                    mesh=mesh, in_specs=COLUMNS, out_specs=COLUMNS, axis_names={"y"},
                )  # fmt: skip
                added = np.arange(shape[1]).repeat(8 // shape[1])
                np.testing.assert_array_equal(jax.jit(function)(VALUE), VALUE * 2 + added)
                keys = jax.random.split(jax.random.key(3), 4)
                draw = checked(jax.vmap(jax.random.uniform), mesh, (X,), X)
                np.testing.assert_array_equal(
                    jax.jit(draw)(keys), jax.vmap(jax.random.uniform)(keys)
                )
                split = checked(
                    jax.vmap(lambda key: jax.random.split(key, 2)), mesh, (X,), Spec("x", None)
                )
                expected = jax.random.key_data(jax.vmap(lambda k: jax.random.split(k, 2))(keys))
                np.testing.assert_array_equal(jax.random.key_data(jax.jit(split)(keys)), expected)


@pytest.mark.long
def test_concrete_values_inside(subtests: pytest.Subtests) -> None:
    """Without jit a value that all devices share decides a condition of Python; others do not."""
    mesh = mesh_of(2, 2)

    def program(v: Any) -> Any:
        return v * 2 if lax.psum(v.sum(), ("x", "y")) > 0 else v * 3

    sign = 2 if VALUE.sum() > 0 else 3
    with subtests.test("shared"):
        got = checked(program, mesh, (XY,), XY)(VALUE)
        np.testing.assert_array_equal(got, VALUE * sign)
    with subtests.test("its own"), pytest.raises(jax.errors.ConcretizationTypeError):
        checked(lambda v: v if v.sum() > 0 else -v, mesh, (XY,), XY)(VALUE)
    with subtests.test("put nowhere"):
        got = checked(lambda v: jax.device_put(v) + 1, mesh, (XY,), XY)(VALUE)
        np.testing.assert_array_equal(got, VALUE + 1)
    with subtests.test("put on a device"), pytest.raises(ValueError, match="device_put"):
        checked(lambda v: jax.device_put(v, jax.devices()[0]), mesh, (XY,), XY)(VALUE)
    with subtests.test("unused results"):
        two = checked(lambda v: (v + 1, lax.psum(v, "x")), mesh, (XY,), (XY, Spec(None, "y")))
        for kept, expected in ((0, VALUE + 1), (1, sum(HALVES))):
            got = jax.jit(lambda v, kept=kept: jax.jit(two)(v)[kept])(VALUE)
            np.testing.assert_array_equal(got, expected)
