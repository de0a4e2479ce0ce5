"""JAX's compiled programs as objects: called, asked, and given what they were not compiled for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.interpreters import mlir
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding

from suites.shared.global_arrays import Spec, mesh_of
from suites.shared.jax_releases import explicit, since_0_5
from suites.spmd_specs.jax_layouts import check, partitioned_by

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("8"),
    pytest.mark.upstream("jax-ml/jax#26946"),
    since_0_5,
]
since_0_7 = pytest.mark.skipif(
    jax.__version_info__ < (0, 7), reason="JAX before 0.7 has less of this, and in other words"
)
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
        again = compiled({"a": a, "b": b}, VALUE[1].astype(np.float64), unused=np.float64(1))
        check(again["sum"], VALUE + VALUE[1], mesh, ("x", "y"))
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


@since_0_7
def test_what_is_named_of_wrong_arguments(subtests: pytest.Subtests) -> None:
    """Of the arguments that a compiled program does not take, up to five are named."""
    mesh = mesh_of(2, 4)
    rows, columns = (NamedSharding(mesh, Spec(*axes)) for axes in (("x",), (None, "y")))
    compiled = jax.jit(lambda *v: sum(v), in_shardings=rows).lower(*[VALUE] * 6).compile()
    good, moved = jax.device_put(VALUE, rows), jax.device_put(VALUE, columns)
    for number, text in ((1, "The mismatches"), (4, "The mismatches"), (6, "The first 5 of 6")):
        arguments = [good] * (6 - number) + [VALUE[:4]] * number
        with subtests.test(sizes=number), pytest.raises(TypeError) as wrong:
            compiled(*arguments)
        assert text in str(wrong.value)
        assert str(wrong.value).count("called with float32[4,8]") == min(number, 5)
    for number, text in ((1, "the 1 mismatches"), (6, "5 mismatches out of 6")):
        arguments = [good] * (6 - number) + [moved] * number
        with subtests.test(places=number), pytest.raises(ValueError) as error:
            compiled(*arguments)
        assert "compiled for input shardings that disagree with the shardings" in str(error.value)
        assert text in str(error.value)
        assert str(error.value).count("Required sharding") == min(number, 5)
    layout = pytest.importorskip("jax.experimental.layout")
    turned = layout.Format(layout.Layout((1, 0)), rows)
    arguments = [good] * 5 + [jax.device_put(VALUE, turned)]
    with subtests.test("layouts"), pytest.raises(ValueError, match="the layouts of arguments"):
        compiled(*arguments)
    arguments[0] = moved
    both = pytest.raises(ValueError, match="input shardings and layouts that")
    with subtests.test("shardings and layouts"), both:
        compiled(*arguments)


@since_0_7
def test_compiled_for_devices_to_come(subtests: pytest.Subtests) -> None:
    """A step is lowered for a mesh without devices, and compiled for some of each order."""
    mesh, devices = mesh_of(2, 4), tuple(jax.devices())
    absent = mesh.abstract_mesh
    at, turned = (NamedSharding(absent, Spec(*axes)) for axes in (("x", "y"), ("y", "x")))
    given = jax.ShapeDtypeStruct(VALUE.shape, VALUE.dtype, sharding=at)
    step = jax.jit(lambda v: (v.T * 2, v + 1), out_shardings=(turned, None))
    lowered = step.trace(given).lower(lowering_platforms=("tpu",))
    with subtests.test("no devices"), pytest.raises(RuntimeError, match="device_assignment"):
        lowered.compile()
    for order in (devices, devices[::-1]):
        there = Mesh(np.array(order).reshape(2, 4), ("x", "y"))
        with subtests.test(first=order[0].id):
            compiled = lowered.compile(device_assignment=order)
            placed = jax.device_put(VALUE, NamedSharding(there, Spec("x", "y")))
            transposed, more = compiled(placed)
            check(transposed, VALUE.T * 2, there, ("y", "x"))
            check(more, VALUE + 1, there, ("x", "y"))
    here = jax.jit(lambda v: v * 2, in_shardings=NamedSharding(mesh, Spec("x"))).lower(VALUE)
    with subtests.test("the same"):
        compiled = here.compile(device_assignment=devices)
        for given_value in (VALUE, VALUE.astype(np.float64)):
            check(compiled(given_value), VALUE * 2, mesh, ("x", None))
    few = NamedSharding(Mesh(mesh.devices[:1], ("x", "y")), Spec(None, "y"))
    other = NamedSharding(Mesh(mesh.devices.T, ("x", "y")).abstract_mesh, Spec("x"))
    wrong: dict[str, tuple[str, Callable[[], Any]]] = {
        "some": ("size|number of devices", lambda: lowered.compile(device_assignment=devices[:4])),
        "no platform": ("lowering_platforms", step.trace(given).lower),
        "others": ("must match", lambda: here.compile(device_assignment=devices[::-1])),
        "two sizes": (
            "does not match",
            lambda: (
                jax.jit(lambda v: v, out_shardings=few)
                .trace(given)
                .lower(lowering_platforms=("tpu",))
            ),
        ),
    }
    if jax.__version_info__ < (0, 8):
        wrong["two meshes"] = (
            "same across",
            lambda: (
                jax.jit(lambda v: v, out_shardings=other)
                .trace(given)
                .lower(lowering_platforms=("tpu",))
            ),
        )
    for name, (text, operation) in wrong.items():
        with subtests.test(wrong=name), pytest.raises((RuntimeError, ValueError), match=text):
            operation()


@pytest.mark.skipif(
    jax.__version_info__ >= (0, 10), reason="from JAX 0.10 on a result has a place or none"
)
def test_dimensions_left_to_the_compiler(subtests: pytest.Subtests) -> None:
    """A result lies where it is told to be, and in other dimensions where the program has it."""
    mesh, free = mesh_of(2, 4), Spec.UNCONSTRAINED
    keys = jax.random.split(jax.random.key(3), 8)
    for given, results, spec in (
        (("x", "y"), (free, "y"), ("x", "y")),
        (("x", None), ("x", free), ("x", None)),
        (("y", None), (free, None), ("y", None)),
        (("x", None), (free, ("y",)), ("x", "y")),
    ):
        with subtests.test(given=given, results=str(results)):
            placed = jax.device_put(VALUE, NamedSharding(mesh, Spec(*given)))
            step = jax.jit(lambda v: v * 2, out_shardings=NamedSharding(mesh, Spec(*results)))
            check(step(placed), VALUE * 2, mesh, spec)
    with subtests.test("keys"):
        rows = NamedSharding(mesh, Spec("x"))
        step = jax.jit(lambda k: k, out_shardings=NamedSharding(mesh, Spec(free)))
        got = step(jax.device_put(keys, rows))
        assert got.sharding.is_equivalent_to(rows, 1)
        np.testing.assert_array_equal(jax.random.key_data(got), jax.random.key_data(keys))
        compiled = step.lower(got).compile()
        for _ in range(2):
            again = compiled(got)
            np.testing.assert_array_equal(jax.random.key_data(again), jax.random.key_data(keys))


@pytest.mark.skipif(
    jax.__version_info__ < (0, 7) or jax.__version_info__ >= (0, 8),
    reason="only some releases of JAX leave a placement to GSPMD",
)
def test_placements_left_to_the_compiler(subtests: pytest.Subtests) -> None:
    """On the host's processors, whose compiler chooses by what else is said, arrays of a TPU."""
    pjit = pytest.importorskip("jax.experimental.pjit")
    jax.config.update("jax_num_cpu_devices", 8)
    mesh = Mesh(np.array(jax.devices("cpu")).reshape(2, 4), ("x", "y"))
    free = pjit.AUTO(mesh)
    rows, columns = (NamedSharding(mesh, Spec(*axes)) for axes in (("x",), (None, "y")))
    a = jax.jit(lambda v: v * 2)(VALUE)
    given = [jax.ShapeDtypeStruct(VALUE.shape, VALUE.dtype)] * 3

    def step(a: Any, b: Any, unused: Any) -> Any:
        del unused
        kept = jax.lax.with_sharding_constraint(a, rows)
        return kept @ b, kept.sum(1)

    for taken, given_back in (((free, columns), (free, free)), ((rows, free), (columns, rows))):
        with subtests.test(taken=str(taken)), partitioned_by("gspmd"):
            jitted = jax.jit(step, in_shardings=(*taken, rows), out_shardings=given_back)
            compiled = jitted.lower(*given).compile()
            chosen, results = compiled.input_shardings[0], compiled.output_shardings
            for each, own in zip((*taken, rows, *given_back), (*chosen, *results), strict=True):
                assert own == each if each is not free else own.mesh == mesh
            arguments = map(jax.device_put, (a, VALUE, VALUE), chosen)
            product, sums = compiled(*arguments)
            np.testing.assert_allclose(product, VALUE * 2 @ VALUE)
            np.testing.assert_allclose(sums, VALUE.sum(1) * 2)
            assert (product.sharding, sums.sharding) == results


def test_where_results_lie(subtests: pytest.Subtests) -> None:
    """By what the arguments say, by what jit says, on one device, and where that contradicts."""
    mesh, devices = mesh_of(2, 4), jax.devices()
    rows = NamedSharding(mesh, Spec("x"))
    double = jax.jit(lambda v: v * 2)
    with subtests.test("as the argument"):
        for place in (devices[0], devices[5]):
            assert double(jax.device_put(VALUE, place)).devices() == {place}
        assert double(VALUE).devices() == {devices[0]}
        assert double(jax.device_put(VALUE, devices[5])).sharding == SingleDeviceSharding(
            devices[5]
        )
        for axes in (("x", None), ("x", "y"), (None, "y"), (("y", "x"), None)):
            at = NamedSharding(mesh, Spec(*axes))
            check(double(jax.device_put(VALUE, at)), VALUE * 2, mesh, axes)
            assert double(jax.device_put(VALUE, at)).sharding == at
        turned = jax.jit(jnp.transpose)(jax.device_put(VALUE, NamedSharding(mesh, Spec("x", "y"))))
        assert turned.sharding == NamedSharding(mesh, Spec("y", "x"))
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
    with subtests.test("of nothing"):
        ones, zeros = jax.jit(
            lambda: (jnp.ones(8), jnp.zeros((8, 8))), out_shardings=(None, rows)
        )()
        check(ones, np.ones(8, np.float32), mesh, (None,))
        check(zeros, np.zeros((8, 8), np.float32), mesh, ("x", None))
    with subtests.test("by default"), jax.default_device("cpu"):
        assert double(VALUE).devices() == {jax.devices("cpu")[0]}
        costs = jax.jit(lambda v: v @ v).lower(VALUE).cost_analysis()
        assert 2 * 8**3 - 64 <= costs["flops"] <= 2 * 8**3
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


@pytest.mark.skipif(
    jax.__version_info__ < (0, 10) and jax.__version_info__ != (0, 7, 1),
    reason="JAX before 0.7.1 writes constants into the program, and 0.7.2 to 0.9 fail with NumPy's",
)
def test_constants_as_arguments(subtests: pytest.Subtests) -> None:
    """What a program closes over may become its first arguments, which JAX has as a choice."""
    options: dict[str, Any] = {}
    if hasattr(jax.config, "jax_use_simplified_jaxpr_constants"):
        jax.config.update("jax_use_simplified_jaxpr_constants", True)
        hoisted = mlir.LoweringParameters(hoist_constants_as_args=True)
        options["_private_parameters"] = hoisted
    mesh, w = mesh_of(2, 4), np.arange(8, dtype=np.float32)
    placed = jax.device_put(VALUE, NamedSharding(mesh, Spec("x", "y")))

    def step(unused: Any, v: Any, u: Any) -> Any:
        del unused
        return v * w + VALUE - u, v + 1

    expected = VALUE * w
    for name, donated in {"kept": (), "given away": 1}.items():
        lowered = jax.jit(step, donate_argnums=donated).trace(3, placed, placed).lower(**options)
        with subtests.test(name=name):
            (line,) = (line for line in lowered.as_text().splitlines() if "@main(" in line)
            arguments = line.partition(" -> ")[0].split("%arg")[1:]
            assert len(arguments) >= 3  # of later releases only the large constants
            assert [
                n for n, text in enumerate(arguments) if "donor" in text or "alias" in text
            ] == ([len(arguments) - 2] if donated else [])
            compiled = lowered.compile()
            for _ in range(2):
                result, more = compiled(3, placed + 0, placed)
                check(result, expected, mesh, ("x", "y"))
                check(more, VALUE + 1, mesh, ("x", "y"))
            with pytest.raises(TypeError, match=r"'v'.*float32\[8,8\] and called with"):
                compiled(3, VALUE[:4], placed)
    array_ref = getattr(jax, "new_ref", None) or jax.experimental.mutable_array
    ref = array_ref(jnp.asarray(w))

    def add(v: Any) -> Any:
        ref[...] = ref[...] + v * w
        return v * 2

    with subtests.test("beside what changes"):
        compiled = jax.jit(add).trace(w).lower(**options).compile()
        for n in range(2):
            np.testing.assert_array_equal(compiled(w), w * 2)
            np.testing.assert_array_equal(ref[...], w + (n + 1) * w**2)
    if jax.__version_info__ < (0, 8):
        mapped = jax.pmap(lambda v, u: v * w + u, in_axes=(0, None), donate_argnums=0)
        given = jax.pmap(lambda v: v)(VALUE)
        with subtests.test("of a map"):
            compiled = mapped.trace(given, w).lower(**options).compile()
            np.testing.assert_array_equal(compiled(given, w), VALUE * w + w)
            assert given.is_deleted()


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
    with subtests.test("in no order of devices"), pytest.raises(ValueError, match="more than 1"):
        jax.jit(lambda v: jax.debug.print("{}", v[0], ordered=True))(divided)
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
        alone = SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")
        pairs: list[tuple[Any, Any]] = [(back, host), (VALUE, alone)]
        if hasattr(jax, "set_mesh"):
            typed = NamedSharding(explicit(mesh), Spec("x", "y"))
            pairs.append((jax.device_put(VALUE, typed), typed.with_memory_kind("pinned_host")))
        for value, place in pairs:
            left = jax.jit(lambda v, place=place: (jax.device_put(v * 5, place), v + 1))(value)
            assert [each.sharding.memory_kind for each in left] == ["pinned_host", "device"]
            np.testing.assert_array_equal(left[0], VALUE * 5)
    with subtests.test("unknown"), pytest.raises(ValueError):
        jax.device_put(VALUE, at.with_memory_kind("attic"))


@since_0_7
def test_layouts_of_the_compiler(subtests: pytest.Subtests) -> None:
    """A compiled program says in which layouts it takes arrays, and takes them in these."""
    layout = pytest.importorskip("jax.experimental.layout")
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
    for tiling in (None, ((8, 128),)):
        turned = layout.Format(layout.Layout((1, 0), tiling), rows)
        with subtests.test("from the host", tiling=tiling):
            transpose = jax.jit(lambda v: v.T, in_shardings=turned, out_shardings=columns)
            check(transpose(VALUE), VALUE.T, mesh, (None, "y"))
    with subtests.test("an array without a program"), pytest.raises(TypeError, match="AUTO"):
        jax.make_array_from_callback(VALUE.shape, layout.Format(auto, rows), lambda i: VALUE[i])


@since_0_7
def test_reports_of_compilations(
    caplog: pytest.LogCaptureFixture, subtests: pytest.Subtests
) -> None:
    """Each compilation is timed for listeners, and logged where that was switched on."""
    events: list[tuple[str, Any]] = []

    def listen(event: str, _: float, **names: Any) -> None:
        events.append((event.rpartition("/")[2].partition("_duration")[0], names.get("fun_name")))

    def logged(text: str) -> int:
        return sum(text in record.getMessage() for record in caplog.records)

    jax.monitoring.register_event_duration_secs_listener(listen)
    placed = jax.device_put(VALUE, NamedSharding(mesh_of(2, 4), Spec("x", "y")))
    maps: dict[str, Any] = {"jit": jax.jit}
    if jax.__version_info__ < (0, 8):
        maps["pmap"] = jax.pmap
    for name, wrap in maps.items():
        for is_logged in (False, True):

            def step(v: Any, factor: int = 3 + is_logged) -> Any:
                return v * factor

            events.clear()
            caplog.clear()
            program = wrap(step)
            with jax.log_compiles(is_logged):
                program(placed)
                program(placed)
            with subtests.test(name=name, is_logged=is_logged):
                times = [event for event, _ in events]
                assert times.count("jaxpr_to_mlir_module") == times.count("backend_compile") == 1
                assert ("jaxpr_trace", "step") in events
                for text in (f"Compiling {'jit(step)' if name == 'jit' else 'step ('}", "Finished"):
                    assert bool(logged(text)) == is_logged
                assert logged("Finished XLA compilation of") == is_logged
    if "pmap" in maps:
        jax.config.update("jax_distributed_debug", True)
        caplog.clear()
        with subtests.test("in detail"), caplog.at_level("DEBUG", "jax"):
            jax.pmap(lambda v: v + 1)(VALUE)
            assert logged("num_replicas: 8  num_local_replicas: 8") == 1
            assert logged("Running pmapped function") == 1


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
