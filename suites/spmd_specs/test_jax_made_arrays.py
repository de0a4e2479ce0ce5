"""JAX's arrays made of keys, in a layout of their own, changed in place, and closed over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding

from suites.shared.global_arrays import Spec, mesh_of
from suites.shared.jax_releases import explicit, needs_explicit_axes
from suites.spmd_specs.jax_layouts import check

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("4"),
    pytest.mark.upstream("jax-ml/jax#16816"),
    pytest.mark.skipif(
        jax.__version_info__ < (0, 7), reason="JAX before 0.7 does much of this in other ways"
    ),
]
VALUE = (np.arange(32).reshape(4, 8) * 37 % 61).astype(np.float32)


@pytest.mark.long
def test_made_of_keys(subtests: pytest.Subtests) -> None:
    """Random keys are put together as numbers are, and are drawn from as before."""
    keys = jax.random.split(jax.random.key(5), 4)
    drawn = jax.vmap(jax.random.uniform)(keys)
    mesh = mesh_of(2, 2)
    for spec in (Spec("x"), Spec(("y", "x")), Spec()):
        at = NamedSharding(mesh, spec)
        parts = [jax.device_put(keys[i], d) for d, i in at.devices_indices_map((4,)).items()]
        made = {
            "put": jax.device_put(keys, at),
            "by index": jax.make_array_from_callback((4,), at, lambda index: keys[index]),
            "of parts": jax.make_array_from_single_device_arrays((4,), at, parts),
        }
        for name, array in made.items():
            with subtests.test(name=name, spec=spec):
                assert array.sharding.is_equivalent_to(at, 1)
                np.testing.assert_array_equal(jax.vmap(jax.random.uniform)(array), drawn)
                for shard in array.addressable_shards:
                    expected = jax.random.key_data(keys)[shard.index]
                    np.testing.assert_array_equal(jax.random.key_data(shard.data), expected)


def test_made_by_index(subtests: pytest.Subtests) -> None:
    """With a dtype, of an array that is there already, and of one on several devices."""
    mesh = mesh_of(2, 2)
    at, whole = NamedSharding(mesh, Spec("x")), NamedSharding(mesh, Spec())
    make = jax.make_array_from_callback
    array = make(VALUE.shape, at, lambda i: VALUE[i], dtype=np.float32)
    check(array, VALUE, mesh, ("x", None))
    there = jax.device_put(VALUE, whole)
    with subtests.test("of divided arrays"):
        check(make(VALUE.shape, whole, lambda i: there[i]), VALUE, mesh, (None, None))
        check(make(VALUE.shape, at, lambda i: there[i]), VALUE, mesh, ("x", None))
    with subtests.test("the same one"):
        alone = SingleDeviceSharding(jax.devices()[1])
        own = jax.device_put(VALUE, alone)
        assert make(VALUE.shape, alone, lambda _: own).devices() == {jax.devices()[1]}
        other = make(VALUE.shape, SingleDeviceSharding(jax.devices()[2]), lambda _: own)
        assert other.devices() == {jax.devices()[2]}
        np.testing.assert_array_equal(other, VALUE)
        free = make(
            VALUE.shape, SingleDeviceSharding(jax.devices()[0]), lambda _: jnp.asarray(VALUE)
        )
        assert free.committed
    with subtests.test("a number of Python"):
        number = make((), whole, lambda _: 3)
        assert (number.dtype, number.weak_type, int(number)) == ("int32", False, 3)
    with subtests.test("a tuple of parts"):
        parts = tuple(jax.device_put(VALUE, device) for device in jax.devices())
        made = jax.make_array_from_single_device_arrays(VALUE.shape, whole, parts, dtype=np.float32)
        check(made, VALUE, mesh, (None, None))
        assert made.committed
    with subtests.test("a tree of shapes"):
        tree = {"a": VALUE, "b": [VALUE * 2, VALUE * 3]}
        of_tree = jax.make_array_from_process_local_data
        for shapes in ({"a": None, "b": (4, 8)}, {"a": (4, 8), "b": [None, (4, 8)]}, (4, 8)):
            result = of_tree({"a": at, "b": whole}, tree, shapes)
            check(result["a"], VALUE, mesh, ("x", None))
            check(result["b"][1], VALUE * 3, mesh, (None, None))
    wrong: dict[str, Callable[[], Any]] = {
        "dtype": lambda: make(VALUE.shape, at, lambda i: VALUE[i], dtype=np.int32),
        "parts' dtype": lambda: jax.make_array_from_single_device_arrays(
            VALUE.shape, alone, [own], dtype=np.int32
        ),
        "a shape of the tree": lambda: of_tree(at, tree, {"a": None, "b": [(4, 8), (8, 8)]}),
        "traced": lambda: jax.jit(lambda v: make(VALUE.shape, at, lambda i: v[i]))(VALUE),
    }
    for name, operation in wrong.items():
        with subtests.test(wrong=name), pytest.raises((TypeError, ValueError)):
            operation()
    fresh = jax.jit(lambda v: v * 2, out_shardings=at)(VALUE)
    fresh.copy_to_host_async()
    np.testing.assert_array_equal(fresh, VALUE * 2)


def test_closed_over(subtests: pytest.Subtests) -> None:
    """Arrays that a program uses without taking them: on one device, divided, and of many types."""
    at = NamedSharding(mesh_of(2, 2), Spec("x", "y"))
    for name, constant in {
        "one": jax.device_put(VALUE),
        "divided": jax.device_put(VALUE, at),
        "bfloat16": jnp.asarray(VALUE, "bfloat16"),
    }.items():
        with subtests.test(name=name):
            program = jax.jit(lambda v, c=constant: v + c, out_shardings=at)
            check(program(VALUE), VALUE * 2, mesh_of(2, 2), ("x", "y"))


def test_changed_in_place(subtests: pytest.Subtests) -> None:
    """References that a program takes or closes over, divided or not, keep what it wrote."""
    array_ref = getattr(jax, "new_ref", None) or getattr(jax.experimental, "mutable_array", None)
    if array_ref is None:
        pytest.skip("this release of JAX has none")
    mesh = mesh_of(2, 2)
    at, everywhere = NamedSharding(mesh, Spec("x", "y")), NamedSharding(mesh, Spec())

    @jax.jit
    def add(unused: Any, ref: Any, v: Any) -> Any:
        del unused
        before = ref[...]
        ref[0] = v[0] * 3
        ref[...] = ref[...] + v
        return before.sum()

    expected = VALUE + VALUE
    expected[0] = VALUE[0] * 4
    for name, value in {"one": jnp.asarray(VALUE), "divided": jax.device_put(VALUE, at)}.items():
        zero = jax.device_put(np.float32(0), everywhere if name == "divided" else None)
        ref, closed, count = array_ref(value), array_ref(value + 1), array_ref(zero)
        with subtests.test(name=name):
            assert add(7, ref, VALUE) == VALUE.sum()
            np.testing.assert_array_equal(ref[...], expected)
            assert ref[...].sharding.is_equivalent_to(value.sharding, 2)

        @jax.jit
        def use(v: Any, closed: Any = closed, count: Any = count) -> Any:
            def step(n: Any, carry: Any) -> Any:
                count[...] = count[...] + n
                return carry + closed[...]

            total = jax.lax.fori_loop(0, 3, step, v)
            closed[...] = total
            return total * 2

        for _ in range(2):
            with subtests.test("closed over", name=name):
                before = np.asarray(closed[...])
                np.testing.assert_array_equal(use(VALUE), (VALUE + 3 * before) * 2)
                np.testing.assert_array_equal(closed[...], VALUE + 3 * before)
        assert count[...] == 6
        with subtests.test("compiled ahead", name=name):
            before = np.asarray(closed[...])
            ahead = use.lower(VALUE).compile()
            np.testing.assert_array_equal(ahead(VALUE), (VALUE + 3 * before) * 2)
            np.testing.assert_array_equal(closed[...], VALUE + 3 * before)


def test_layouts(subtests: pytest.Subtests) -> None:
    """An array whose last dimension is the major one in memory has the same numbers."""
    layout = pytest.importorskip("jax.experimental.layout")
    if not hasattr(layout, "Format"):
        pytest.skip("this release of JAX has no format")
    mesh = mesh_of(2, 2)
    at = NamedSharding(mesh, Spec("x", "y"))
    columns = layout.Format(layout.Layout((1, 0)), at)
    rows = layout.Format(layout.Layout((0, 1)), at)
    put = jax.device_put(VALUE, columns)
    with subtests.test("put"):
        assert put.format.layout.major_to_minor == (1, 0)
        check(put, VALUE, mesh, ("x", "y"))
        assert jax.device_put(put, put.format) is put
        back = jax.device_put(put, rows)
        assert back.format.layout.major_to_minor == (0, 1)
        check(back, VALUE, mesh, ("x", "y"))
        assert jax.device_put(put, layout.Format()) is put
    with subtests.test("made"):
        made = jax.make_array_from_callback(VALUE.shape, columns, lambda i: VALUE[i])
        assert made.format.layout.major_to_minor == (1, 0)
        check(made, VALUE, mesh, ("x", "y"))
        own = jax.device_put(VALUE, jax.devices()[1])
        assert jax.make_array_from_callback(VALUE.shape, own.format, lambda _: own) is own
        auto = layout.Format(layout.Layout.AUTO, at)
        with pytest.raises(TypeError, match="AUTO"):
            jax.make_array_from_callback(VALUE.shape, auto, lambda i: VALUE[i])
    with subtests.test("deleted"):
        own.delete()
        assert (own.format.layout, own.format.sharding) == (None, own.sharding)
    with subtests.test("in a program"):
        program = jax.jit(lambda v: v * 2, in_shardings=rows, out_shardings=columns)
        result = program(back)
        assert result.format.layout.major_to_minor == (1, 0)
        check(result, VALUE * 2, mesh, ("x", "y"))
        free = jax.jit(lambda v: v * 2, in_shardings=columns)(jnp.asarray(VALUE))
        check(free, VALUE * 2, mesh, ("x", "y"))
        compiled = program.lower(VALUE).compile()
        assert compiled.output_formats.layout.major_to_minor == (1, 0)
        with pytest.raises(ValueError, match="ayout"):
            compiled(put)


@needs_explicit_axes
def test_meshes_of_a_context(subtests: pytest.Subtests) -> None:
    """Entered, left by an error, and one within another, a mesh is that of what is computed."""
    mesh, turned = explicit(mesh_of(2, 2)), explicit(Mesh(mesh_of(4, 1).devices, ("x", "y")))

    def current() -> Any:
        return jax.sharding.get_abstract_mesh().axis_sizes

    outside = current()
    with jax.set_mesh(mesh):
        assert current() == (2, 2)
        with pytest.raises(ZeroDivisionError), jax.set_mesh(turned):  # noqa: PT012 - both raise
            assert current() == (4, 1)
            raise ZeroDivisionError
        assert current() == (2, 2)
        with subtests.test("by its axes"):
            placed = jax.device_put(VALUE, Spec("x", "y"))
            assert placed.sharding == NamedSharding(mesh, Spec("x", "y"))
            check(jax.jit(lambda v: v + 1)(placed), VALUE + 1, mesh, ("x", "y"))
            moved = jax.sharding.reshard(placed, Spec(None, ("y", "x")))
            assert moved.sharding.spec == Spec(None, ("y", "x"))
            check(moved, VALUE, mesh, (None, ("y", "x")))
        with subtests.test("left to the compiler for a step"):
            double = jax.sharding.auto_axes(
                lambda v: v * 2, axes=("x", "y"), out_sharding=Spec("x", "y")
            )
            assert double(placed).sharding == placed.sharding
            check(double(placed), VALUE * 2, mesh, ("x", "y"))
        with subtests.test("not in jit"), pytest.raises(ValueError, match="jit"):
            jax.jit(lambda v: [jax.set_mesh(turned), v][1])(VALUE)
    assert current() == outside
    with subtests.test("no mesh"), pytest.raises(ValueError, match="mesh"):
        jax.set_mesh(mesh.abstract_mesh)
    manual = (jax.sharding.AxisType.Manual,) * 2
    with subtests.test("no axes by hand"), pytest.raises(ValueError, match="manual axes"):
        jax.set_mesh(Mesh(mesh.devices, ("x", "y"), axis_types=manual))
