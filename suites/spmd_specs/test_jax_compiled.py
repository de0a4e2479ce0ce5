"""JAX's compiled programs as objects: called, asked, and given what they were not compiled for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding

from suites.shared.global_arrays import Spec, mesh_of
from suites.shared.jax_releases import since_0_5
from suites.spmd_specs.jax_layouts import check

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("8"),
    pytest.mark.upstream("jax-ml/jax#26946"),
    since_0_5,
]
VALUE = (np.arange(64).reshape(8, 8) * 29 % 31 - 9).astype(np.float32)


def program(tree: Any, w: Any, *, unused: Any) -> Any:
    del unused
    return {"sum": tree["a"] + w, "scaled": [tree["b"] * 2]}


def test_compiled_ahead(subtests: pytest.Subtests) -> None:
    """What was compiled says where its arguments and results lie, and takes no others."""
    mesh = mesh_of(2, 4)
    rows, tiles, whole = (NamedSharding(mesh, Spec(*axes)) for axes in (("x",), ("x", "y"), ()))
    jitted = jax.jit(program, out_shardings={"sum": tiles, "scaled": [whole]})
    a, b = jax.device_put(VALUE, rows), jax.device_put(VALUE, tiles)
    w, unused = jax.device_put(VALUE[0], whole), np.float32(1)
    compiled = jitted.lower({"a": a, "b": b}, w, unused=unused).compile()
    with subtests.test("called"):
        result = compiled({"a": a, "b": b}, w, unused=unused)
        check(result["sum"], VALUE + VALUE[0], mesh, ("x", "y"))
        check(result["scaled"][0], VALUE * 2, mesh, (None, None))
        again = compiled({"a": a * 2, "b": b * 2}, w * 2, unused=unused)
        check(again["sum"], 2 * (VALUE + VALUE[0]), mesh, ("x", "y"))
    with subtests.test("asked"):
        (arguments, number), named = compiled.input_shardings
        assert arguments["a"].is_equivalent_to(rows, 2)
        assert arguments["b"].is_equivalent_to(tiles, 2)
        assert number.is_equivalent_to(whole, 1)
        assert set(named) == {"unused"}
        assert compiled.output_shardings["sum"].is_equivalent_to(tiles, 2)
        assert compiled.output_shardings["scaled"][0].is_equivalent_to(whole, 2)
        assert [info.shape for info in jax.tree.leaves(compiled.args_info)] == [
            (8, 8),
            (8, 8),
            (8,),
            (),
        ]
        assert compiled.in_tree.num_leaves == 4
    other = Mesh(mesh.devices[::-1], ("x", "y"))
    moved = jax.device_put(VALUE, NamedSharding(other, Spec("x", "y")))
    wrong: dict[str, Callable[[], Any]] = {
        "size": lambda: compiled({"a": a[:4], "b": b}, w, unused=unused),
        "dtype": lambda: compiled({"a": a, "b": b.astype("int32")}, w, unused=unused),
        "tree": lambda: compiled({"a": a}, w, unused=unused),
        "number": lambda: compiled({"a": a, "b": b}, unused=unused),
        "sharding": lambda: compiled({"a": b, "b": b}, w, unused=unused),
        "order of devices": lambda: compiled({"a": a, "b": moved}, w, unused=unused),
        "name": lambda: compiled({"a": a, "b": b}, w, other=unused),
    }
    for name, operation in wrong.items():
        with subtests.test(wrong=name), pytest.raises((TypeError, ValueError)):
            operation()


def test_where_results_lie(subtests: pytest.Subtests) -> None:
    """By what the arguments say, by what jit says, on one device, and where that contradicts."""
    mesh, devices = mesh_of(2, 4), jax.devices()
    rows = NamedSharding(mesh, Spec("x"))
    double = jax.jit(lambda v: v * 2)
    with subtests.test("as the argument"):
        for place in (devices[0], devices[5]):
            assert double(jax.device_put(VALUE, place)).devices() == {place}
        check(double(jax.device_put(VALUE, rows)), VALUE * 2, mesh, ("x", None))
        assert double(VALUE).devices() == {devices[0]}
    with subtests.test("as jit says"):
        for spec in (("y", "x"), (("x", "y"), None), (None, None)):
            at = NamedSharding(mesh, Spec(*spec))
            check(jax.jit(lambda v: v + 1, out_shardings=at)(VALUE), VALUE + 1, mesh, spec)
            inside = jax.jit(lambda v: v.T, in_shardings=at, out_shardings=at)
            check(inside(VALUE), VALUE.T, mesh, spec)
        alone = SingleDeviceSharding(devices[3])
        assert jax.jit(lambda v: v + 1, out_shardings=alone)(VALUE).devices() == {devices[3]}
    with subtests.test("uncommitted beside committed"):
        there = jax.device_put(VALUE, devices[4])
        assert (there + jnp.ones(8)).devices() == {devices[4]}
        check(jax.device_put(VALUE, rows) + jnp.ones(8), VALUE + 1, mesh, ("x", None))
    with subtests.test("passed through"):
        array = jax.device_put(VALUE, rows)
        same, other, constant = jax.jit(lambda v: (v, v, jnp.float32(7)))(array)
        check(same, VALUE, mesh, ("x", None))
        check(other, VALUE, mesh, ("x", None))
        assert constant == 7
    here, there = (jax.device_put(VALUE, devices[n]) for n in (1, 2))
    half = NamedSharding(Mesh(mesh.devices[:1], ("x", "y")), Spec(None, "y"))
    wrong: dict[str, Callable[[], Any]] = {
        "two devices": lambda: here + there,
        "one and all": lambda: jax.jit(jnp.add)(here, jax.device_put(VALUE, rows)),
        "all and some": lambda: jax.jit(jnp.add, out_shardings=half)(
            jax.device_put(VALUE, rows), 1
        ),
        "another than jit says": lambda: jax.jit(lambda v: v, in_shardings=rows)(
            jax.device_put(VALUE, NamedSharding(mesh, Spec("y")))
        ),
        "a constraint elsewhere": lambda: jax.jit(
            lambda v: jax.lax.with_sharding_constraint(v, half), in_shardings=rows
        )(VALUE),
        "uneven": lambda: jax.jit(lambda v: v, out_shardings=rows)(VALUE[:7]),
    }
    for name, operation in wrong.items():
        with subtests.test(wrong=name), pytest.raises(ValueError):
            operation()


def test_effects_in_order(subtests: pytest.Subtests) -> None:
    """Calls of Python come in the order of the program, over several programs."""
    seen: list[float] = []

    def keep(value: Any) -> None:
        seen.append(float(value))

    @jax.jit
    def step(v: Any) -> Any:
        io_callback(keep, None, v.sum(), ordered=True)
        doubled = v * 2
        io_callback(keep, None, doubled.sum(), ordered=True)
        return doubled

    value = jax.device_put(VALUE, jax.devices()[2])
    for _ in range(3):
        value = step(value)
    jax.effects_barrier()
    total = float(VALUE.sum())
    assert seen == [total, total * 2, total * 2, total * 4, total * 4, total * 8]
    np.testing.assert_array_equal(value, VALUE * 8)
    with subtests.test("on several devices"):
        divided = jax.device_put(VALUE, NamedSharding(mesh_of(2, 4), Spec("x", "y")))
        check(step(step(divided)), VALUE * 4, mesh_of(2, 4), ("x", "y"))
        jax.effects_barrier()
        assert seen[6:] == [total, total * 2, total * 2, total * 4]
    with subtests.test("compiled ahead"):
        ahead = step.lower(value).compile()
        np.testing.assert_array_equal(ahead(value), VALUE * 16)
        jax.effects_barrier()
        assert seen[-2:] == [total * 8, total * 16]


def test_memories(subtests: pytest.Subtests) -> None:
    """Arrays that are put into the host's memory and back, outside of a program and in one."""
    mesh = mesh_of(2, 4)
    at = NamedSharding(mesh, Spec("x", "y"))
    host = at.with_memory_kind("pinned_host")
    kept = jax.device_put(VALUE, host)
    with subtests.test("outside"):
        assert kept.sharding.memory_kind == "pinned_host"
        check(kept, VALUE, mesh, ("x", "y"))
        back = jax.device_put(kept, at)
        assert back.sharding.memory_kind == "device"
        check(back, VALUE, mesh, ("x", "y"))
    with subtests.test("in a step"):
        step = jax.jit(lambda v: jax.device_put(v, at) * 2, out_shardings=at)
        result = step(kept)
        assert result.sharding.memory_kind == "device"
        check(result, VALUE * 2, mesh, ("x", "y"))
        away = jax.jit(lambda v: jax.device_put(v * 3, host), out_shardings=host)(back)
        assert away.sharding.memory_kind == "pinned_host"
        check(away, VALUE * 3, mesh, ("x", "y"))
    with subtests.test("unknown"), pytest.raises(ValueError):
        jax.device_put(VALUE, at.with_memory_kind("attic"))


def test_layouts_of_the_compiler(subtests: pytest.Subtests) -> None:
    """A compiled program says in which layouts it takes arrays, and takes them in these."""
    layout = pytest.importorskip("jax.experimental.layout")
    if not hasattr(layout, "Format"):
        pytest.skip("this release of JAX has no format")
    auto, mesh = layout.Layout.AUTO, mesh_of(2, 4)
    rows, columns = (NamedSharding(mesh, Spec(*axes)) for axes in (("x",), (None, "y")))
    given = jax.ShapeDtypeStruct((8, 8), np.float32)
    for name, (taken, result) in {"one": (None, None), "divided": (rows, columns)}.items():
        in_format, out_format = (layout.Format(auto, place) for place in (taken, result))
        jitted = jax.jit(
            lambda v, w: (v.T * 2, w["a"] + 1), in_shardings=in_format, out_shardings=out_format
        )
        compiled = jitted.lower(given, {"a": given}).compile()
        (first, second), named = compiled.input_formats
        with subtests.test(name=name):
            assert named == {}
            value = jax.device_put(VALUE, first)
            other = {"a": jax.device_put(VALUE, second["a"])}
            doubled, more = compiled(value, other)
            np.testing.assert_array_equal(doubled, VALUE.T * 2)
            np.testing.assert_array_equal(more, VALUE + 1)
            assert (doubled.format, more.format) == compiled.output_formats
            if result:
                check(doubled, VALUE.T * 2, mesh, (None, "y"))
        order = layout.Layout(first.layout.major_to_minor[::-1])
        turned = jax.device_put(VALUE, layout.Format(order, first.sharding))
        with subtests.test("another layout", name=name), pytest.raises(ValueError, match="ayout"):
            compiled(turned, other)
    with subtests.test("an array without a program"), pytest.raises(TypeError, match="AUTO"):
        jax.make_array_from_callback(VALUE.shape, layout.Format(auto, rows), lambda i: VALUE[i])


def test_properties_of_programs(subtests: pytest.Subtests) -> None:
    """What a program costs, which memory it uses, and which options its compiler has."""
    double = jax.jit(lambda a, b: a @ b + 1, compiler_options={"xla_embed_ir_in_executable": True})
    compiled = double.lower(VALUE, VALUE[:, :4]).compile()
    expected = VALUE @ VALUE[:, :4] + 1
    with subtests.test("costs"):
        costs = compiled.cost_analysis()
        costs = costs[0] if isinstance(costs, list) else costs
        assert 2 * 8 * 8 * 4 <= costs["flops"] <= 2 * 8 * 8 * 4 + 64
        memory = compiled.memory_analysis()
        assert memory.argument_size_in_bytes == VALUE.nbytes * 3 // 2
        assert memory.output_size_in_bytes == expected.nbytes
    with subtests.test("options"):
        np.testing.assert_allclose(compiled(VALUE, VALUE[:, :4]), expected, rtol=1e-6)
        wrong = {"xla_of_nobody": True}
        with pytest.raises(Exception, match="xla_of_nobody"):
            jax.jit(lambda v: v, compiler_options=wrong)(VALUE)
        with pytest.raises(Exception, match="xla_of_nobody"):
            jax.jit(lambda v: v).lower(VALUE).compile(wrong)
    with subtests.test("no derivative"):
        for place in (None, NamedSharding(mesh_of(8), Spec("x"))):
            numbers = jax.device_put(np.arange(8), place)
            slopes = jax.jit(jax.grad(lambda n: (n * 2.0).sum(), allow_int=True))(numbers)
            assert (slopes.shape, slopes.dtype) == ((8,), jax.dtypes.float0)


def test_specs_need_a_mesh(subtests: pytest.Subtests) -> None:
    """A spec alone is of the mesh in use, which an old program enters by itself."""
    mesh, spec = mesh_of(2, 4), Spec("x", "y")

    def step(v: Any) -> Any:
        return jax.lax.with_sharding_constraint(v * 2, spec)

    uses: dict[str, Callable[[], Any]] = {
        "in a step": lambda: jax.jit(step)(VALUE),
        "of arguments": lambda: jax.jit(lambda v: v * 2, in_shardings=spec, out_shardings=spec)(
            VALUE
        ),
        "of an array": lambda: jax.device_put(VALUE * 2, spec),
    }
    for name, use in uses.items():
        with subtests.test("without", name=name), pytest.raises((RuntimeError, ValueError)):
            use()
        if hasattr(jax, "set_mesh"):
            with subtests.test(name=name), jax.set_mesh(mesh):
                check(use(), VALUE * 2, mesh, ("x", "y"))
    with subtests.test("entered"), mesh:
        check(uses["in a step"](), VALUE * 2, mesh, ("x", "y"))
