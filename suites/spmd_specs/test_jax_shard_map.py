"""shard_map as its users write it: checked or not, nested, mapped, differentiated, and refused.

NumPy computes what each device's own part gives.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from suites.shared.global_arrays import mesh_of
from suites.shared.jax_releases import (
    checked,
    explicit,
    jitted,
    needs_explicit_axes,
    since_0_5,
)
from suites.spmd_specs.jax_layouts import partitioned_by

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("8"),
    pytest.mark.upstream("jax-ml/jax#36886"),
    pytest.mark.deadline(120),
    since_0_5,
]
Spec = PartitionSpec
X, Y, XY, WHOLE = Spec("x"), Spec("y"), Spec("x", "y"), Spec()
VALUE = (np.arange(64).reshape(8, 8) * 29 % 31 - 9).astype(np.float32)
needs_check = pytest.mark.skipif(
    not hasattr(jax, "shard_map"), reason="this release of JAX has only the shard_map of old"
)
REFUSALS = (KeyError, NameError, TypeError, ValueError)
BOTH_WAYS = ("checked", "unchecked")


def mapped(way: str, fn: Callable[..., Any], given: Any, result: Any) -> Callable[..., Any]:
    """Map over a mesh of two rows of four devices."""
    make = checked if way == "checked" else jitted
    return make(fn, mesh_of(2, 4), given, result)


def same(value: Any) -> Any:
    """Return the argument."""
    return value


def tiles(value: np.ndarray) -> np.ndarray:
    """Return the parts of each device: by row, by column, and the part."""
    rows, columns = value.shape
    return value.reshape(2, rows // 2, 4, columns // 4).swapaxes(1, 2)


def joined(parts: np.ndarray) -> np.ndarray:
    """Return the value that consists of the parts."""
    return np.concatenate([np.concatenate(list(row), 1) for row in parts])


@pytest.mark.long
@pytest.mark.parametrize("way", BOTH_WAYS)
def test_values(subtests: pytest.Subtests, way: str) -> None:
    """Parts, places, sums and results that all devices share, with and without jit."""
    sums = tiles(VALUE).sum((2, 3))
    rows = np.concatenate([half.cumsum(0) for half in (VALUE[:4], VALUE[4:])])
    differences = joined(tiles(VALUE) * 2 - tiles(VALUE)[:, :, :1])

    def place(axes: Any) -> Callable[..., Any]:
        return lambda v: lax.axis_index(axes) + 0 * v[:1, :1].astype(int)

    def swapped(v: Any) -> Any:
        return lax.ppermute(v, "x", [(0, 1), (1, 0)])

    cases: dict[str, tuple[Callable[..., Any], Any, Any, Any]] = {
        "own": (lambda v: v * 2 - v[:1], XY, XY, differences),
        "whole": (lambda v: v.T, WHOLE, WHOLE, VALUE.T),
        "rows": (lambda v: v.cumsum(0), X, X, rows),
        "place": (place(("x", "y")), XY, XY, np.arange(8).reshape(2, 4)),
        "row": (place("x"), XY, XY, np.arange(2).repeat(4).reshape(2, 4)),
        "other place": (place(("y", "x")), XY, XY, np.arange(8).reshape(4, 2).T),
        "sum": (lambda v: lax.psum(v.sum(), ("x", "y")), XY, WHOLE, VALUE.sum()),
        "sum of rows": (lambda v: lax.psum(v.sum(1), "y"), XY, X, VALUE.sum(1)),
        "sums": (lambda v: v.sum()[None, None], XY, XY, sums),
        "sums in a line": (lambda v: v.sum()[None], XY, Spec(("y", "x")), sums.T.ravel()),
        "mean": (lambda v: lax.pmean(v, "x"), XY, Spec(None, "y"), (VALUE[:4] + VALUE[4:]) / 2),
        "constant": (lambda v: jnp.float32(3), XY, WHOLE, 3),
        "swapped": (swapped, X, X, np.roll(VALUE, 4, 0)),
    }
    for name, (fn, given, result, expected) in cases.items():
        function = mapped(way, fn, (given,), result)
        for how in ("at once", "shardy", "gspmd"):
            with (
                subtests.test(name=name, how=how),
                partitioned_by("gspmd" if how == "gspmd" else "shardy"),
            ):
                got = (function if how == "at once" else jax.jit(function))(VALUE)
                np.testing.assert_allclose(got, expected, rtol=1e-6)
                at = NamedSharding(mesh_of(2, 4), result)
                assert got.sharding.is_equivalent_to(at, got.ndim)


@pytest.mark.parametrize("way", BOTH_WAYS)
def test_trees(way: str) -> None:
    """Specs for a whole tree, for a part of one, and for none; several results."""

    def program(tree: Any, number: Any, nothing: Any) -> Any:
        assert nothing is None
        return {"a": tree["a"] + number, "b": (tree["b"] * number, tree["c"].sum(0))}, number

    function = mapped(
        way,
        program,
        ({"a": XY, "b": X, "c": Y}, WHOLE, WHOLE),
        ({"a": XY, "b": (X, WHOLE)}, WHOLE)
        if way == "unchecked"
        else ({"a": XY, "b": (X, Y)}, WHOLE),
    )
    tree = {"a": VALUE, "b": VALUE[0], "c": np.arange(8.0, dtype=np.float32).reshape(8, 1)}
    if way == "unchecked":
        tree["c"] = np.ones((8, 1), np.float32)  # so that each device has the same sum
    result, number = function(tree, np.float32(3), None)
    np.testing.assert_array_equal(result["a"], VALUE + 3)
    np.testing.assert_array_equal(result["b"][0], VALUE[0] * 3)
    np.testing.assert_array_equal(
        result["b"][1], tree["c"].reshape(4, 2).sum(1)[: 1 if way == "unchecked" else 4]
    )
    assert number == 3


@pytest.mark.long
@pytest.mark.parametrize("way", BOTH_WAYS)
def test_derivatives(subtests: pytest.Subtests, way: str) -> None:
    """Forward, backward, of both, of what remains of a checkpoint, and of what is not used."""
    weights = np.arange(8, dtype=np.float32) / 8

    def program(v: Any, w: Any, unused: Any) -> Any:
        del unused
        scaled = checkpoint_name(jnp.sin(v) * w * jnp.float32(2), "scaled")
        return lax.psum((scaled * w.sum()).sum(), ("x", "y"))

    def alone(v: Any, w: Any) -> Any:
        sums = w.reshape(4, 2).sum(1).repeat(2)
        return (jnp.sin(v) * w * 2 * sums).sum()

    function = mapped(way, program, (XY, Y, WHOLE), WHOLE)
    expected = jax.grad(alone, (0, 1))(VALUE, weights)
    unused = np.float32(7)
    policies = jax.checkpoint_policies
    functions = {
        "plain": function,
        "kept little": jax.checkpoint(function),
        "kept all": jax.checkpoint(
            lambda v, w, u: jnp.cos(function(v * 1, w, u)), policy=policies.everything_saveable
        ),
        "kept some": jax.checkpoint(
            lambda v, w, u: jnp.cos(function(v * 1, w, u)),
            policy=policies.save_only_these_names("scaled"),
        ),
    }
    slope = {name: -np.sin(alone(VALUE, weights)) for name in ("kept all", "kept some")}
    for name, of in functions.items():
        with subtests.test(name=name):
            *got, none = jax.jit(jax.grad(of, (0, 1, 2)))(VALUE, weights, unused)
            assert none == 0
            for array, own in zip(got, expected, strict=True):
                scaled = own * slope.get(name, 1)
                np.testing.assert_allclose(array, scaled, rtol=1e-4, atol=1e-4)
    with subtests.test("forward"):
        value, tangent = jax.jvp(function, (VALUE, weights, unused), (VALUE, weights, unused))
        np.testing.assert_allclose(value, alone(VALUE, weights), rtol=1e-5)
        expected_tangent = jax.jvp(alone, (VALUE, weights), (VALUE, weights))[1]
        np.testing.assert_allclose(tangent, expected_tangent, rtol=1e-5)
    with subtests.test("linear"):
        _, linear = jax.linearize(jax.jit(lambda v: function(v, weights, unused)), VALUE)
        own = jax.jvp(lambda v: alone(v, weights), (VALUE,), (VALUE + 1,))[1]
        np.testing.assert_allclose(linear(VALUE + 1), own, rtol=1e-5)
    with subtests.test("second"):
        second = jax.jit(jax.jvp, static_argnums=0)(
            jax.grad(lambda v: function(v, weights, unused)), (VALUE,), (np.ones_like(VALUE),)
        )[1]
        sums = weights.reshape(4, 2).sum(1).repeat(2)
        np.testing.assert_allclose(
            second, -np.sin(VALUE) * weights * 2 * sums, rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("way", BOTH_WAYS)
def test_gradients_of_parts(way: str) -> None:
    """Of results that are divided, whole, and each by itself; with scalars that are kept."""
    w = np.float32(1.5)

    def program(v: Any, w: Any) -> Any:
        total = jnp.exp(lax.pmean((v * w).sum(), "x") / 100)
        return v * total * jnp.tanh(w), lax.psum(v * v, "x")

    def alone(v: Any, w: Any) -> Any:
        halves = v.reshape(2, 4, 4, 2)
        total = jnp.exp((halves * w).sum((1, 3)).mean(0) / 100).repeat(2)
        return v * total * jnp.tanh(w), v[:4] ** 2 + v[4:] ** 2

    function = mapped(way, program, (XY, WHOLE), (XY, Spec(None, "y")))
    small = VALUE / 8
    cotangents = np.cos(VALUE), np.sin(VALUE[:4])
    results, back = jax.vjp(jax.jit(function) if way == "checked" else function, small, w)
    expected, own_back = jax.vjp(jax.jit(alone), small, w)
    pairs = zip((*results, *back(cotangents)), (*expected, *own_back(cotangents)), strict=True)
    for got, own in pairs:
        np.testing.assert_allclose(got, own, rtol=1e-4, atol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("way", BOTH_WAYS)
def test_vmap(subtests: pytest.Subtests, way: str) -> None:
    """Over any dimension, of some arguments, of two levels, and over an axis of the mesh."""
    batch = np.stack([VALUE, VALUE + 3, VALUE * 2])
    function = mapped(way, lambda v, w: v * w + lax.psum(v, "x"), (XY, Y), XY)

    def own(v: np.ndarray, w: np.ndarray) -> np.ndarray:
        return v * w + np.concatenate([v[:4] + v[4:]] * 2)

    w = np.arange(8, dtype=np.float32)
    expected = np.stack([own(v, w) for v in batch])
    with subtests.test("first"):
        np.testing.assert_allclose(jax.vmap(function, (0, None))(batch, w), expected)
    with subtests.test("last"):
        last = jax.vmap(function, (2, None), 1)(np.moveaxis(batch, 0, 2), w)
        np.testing.assert_allclose(last, np.moveaxis(expected, 0, 1))
    with subtests.test("the other"):
        other = jax.jit(jax.vmap(function, (None, 0)))(VALUE, np.stack([w, w + 1]))
        np.testing.assert_allclose(other, np.stack([own(VALUE, w), own(VALUE, w + 1)]))
    with subtests.test("two levels"):
        levels = jax.vmap(jax.vmap(function, (0, None)), (None, 0))(batch, np.stack([w, w + 1]))
        np.testing.assert_allclose(levels[1], np.stack([own(v, w + 1) for v in batch]))
    with subtests.test("gradients"):
        gradients = jax.vmap(jax.grad(lambda v: (function(v, w) ** 2).sum()))(batch)
        for gradient, v in zip(gradients, batch, strict=True):
            y = 2 * own(v, w)
            wanted = y * w + np.concatenate([y[:4] + y[4:]] * 2)
            np.testing.assert_allclose(gradient, wanted, rtol=1e-5)
    if way == "unchecked":
        with subtests.test("over an axis"):
            np.testing.assert_allclose(*over_an_axis(way))


def over_an_axis(way: str) -> tuple[Any, np.ndarray]:
    """Divide the dimension over which vmap goes over the axis that no spec names."""
    rows = mapped(way, lambda v: v * 2 + lax.psum(v, "y"), (Y,), Y)
    sums = VALUE.reshape(8, 4, 2).sum(1)
    expected: np.ndarray = VALUE * 2 + np.tile(sums, 4)
    return jax.jit(jax.vmap(rows, spmd_axis_name="x"))(VALUE), expected


def test_vmap_over_an_axis() -> None:
    np.testing.assert_allclose(*over_an_axis("checked"))


@pytest.mark.long
def test_inside_of_loops_and_functions(subtests: pytest.Subtests) -> None:
    """In scan and while, around them, and around functions with gradients of their own."""
    step = mapped("checked", lambda v: v + lax.psum(v, "x") / 2, (XY,), XY)
    expected: Any = VALUE
    for _ in range(3):
        expected = expected + np.concatenate([expected[:4] + expected[4:]] * 2) / 2
    with subtests.test("in scan"):
        got = jax.jit(lambda v: lax.scan(lambda c, _: (step(c), None), v, None, length=3)[0])(VALUE)
        np.testing.assert_allclose(got, expected, rtol=1e-6)
    with subtests.test("in while"):
        got = jax.jit(lambda v: lax.fori_loop(0, 3, lambda _, c: step(c), v))(VALUE)
        np.testing.assert_allclose(got, expected, rtol=1e-6)

    def looped(v: Any) -> Any:
        return lax.fori_loop(0, 3, lambda _, c: c + lax.psum(c, "x") / 2, v)

    with subtests.test("around"):
        got = mapped("unchecked", looped, (XY,), XY)(VALUE)
        np.testing.assert_allclose(got, expected, rtol=1e-6)

    @jax.custom_vjp
    def doubled(v: Any) -> Any:
        return v * 2

    doubled.defvjp(lambda v: (v * 2, v), lambda v, ct: (ct * 5 + 0 * v,))

    @jax.custom_jvp
    def tripled(v: Any) -> Any:
        return v * 3

    tripled.defjvp(lambda primals, tangents: (primals[0] * 3, tangents[0] * 7))
    for fn, factor, slope in ((doubled, 2, 5), (tripled, 3, 7)):
        for way in BOTH_WAYS:
            function = mapped(way, fn, (XY,), XY)
            with subtests.test(factor=factor, way=way):
                np.testing.assert_array_equal(function(VALUE), VALUE * factor)
                gradient = jax.grad(lambda v, of=function: of(v).sum())(VALUE)
                np.testing.assert_array_equal(gradient, np.full_like(VALUE, slope))


@needs_check
def test_nested(subtests: pytest.Subtests) -> None:
    """Over one axis, and within it over the other; the rest is divided as without shard_map."""
    mesh = mesh_of(2, 4)
    inner_sum = partial(jax.shard_map, in_specs=Spec(None, "y"), out_specs=Spec(None, "y"))

    def inner(v: Any) -> Any:
        return v - lax.psum(v.sum(1, keepdims=True), "y") / 8

    def outer(v: Any) -> Any:
        return inner_sum(inner, axis_names={"y"})(v) + lax.psum(v, "x")

    expected = VALUE - VALUE.mean(1, keepdims=True) + np.concatenate([VALUE[:4] + VALUE[4:]] * 2)
    nested = jax.shard_map(outer, mesh=mesh, in_specs=X, out_specs=X, axis_names={"x"})
    with subtests.test("nested"):
        np.testing.assert_allclose(jax.jit(nested)(VALUE), expected, rtol=1e-5, atol=1e-5)
    with subtests.test("one axis"):
        part = jax.shard_map(
            lambda v: (v @ v.T).sum(1) + lax.axis_index("x"),
            mesh=mesh, in_specs=X, out_specs=X, axis_names={"x"},
        )  # fmt: skip
        placed = jax.device_put(VALUE, NamedSharding(mesh, XY))
        halves = [(half @ half.T).sum(1) + n for n, half in enumerate((VALUE[:4], VALUE[4:]))]
        np.testing.assert_allclose(jax.jit(part)(placed), np.concatenate(halves))
    with subtests.test("decorator"):
        decorated = jax.shard_map(mesh=mesh, in_specs=X, out_specs=X)(lambda v: v[::-1])
        np.testing.assert_array_equal(
            decorated(VALUE), np.concatenate([VALUE[3::-1], VALUE[:3:-1]])
        )


@needs_check
def test_gradient_of_nested() -> None:
    """With a number that both functions use."""
    inner = partial(jax.shard_map, in_specs=Spec(None, "y"), out_specs=Spec(None, "y"))

    def outer(v: Any) -> Any:
        return inner(lambda u: u - lax.psum(u, "y") / 8, axis_names={"y"})(v)

    nested = jax.shard_map(outer, mesh=mesh_of(2, 4), in_specs=X, out_specs=X, axis_names={"x"})
    factor = np.cos(VALUE)
    gradient = jax.jit(jax.grad(lambda v: (nested(v) * factor).sum()))(VALUE)
    expected = factor - np.tile(factor.reshape(8, 4, 2).sum(1), 4) / 8
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-4)


@needs_explicit_axes
@needs_check
def test_over_the_mesh_of_the_context(subtests: pytest.Subtests) -> None:
    """Without a mesh, without specs of explicit arguments, and with a mesh that is another one."""
    mesh = explicit(mesh_of(2, 4))
    with jax.set_mesh(mesh):
        placed = jax.device_put(VALUE, NamedSharding(mesh, XY))
        with subtests.test("no mesh"):
            doubled = jax.shard_map(lambda v: v + v.shape[0], in_specs=XY, out_specs=XY)
            np.testing.assert_array_equal(doubled(placed), VALUE + 4)
        with subtests.test("no specs"):
            inferred = jax.jit(jax.shard_map(lambda v: v + v.shape[1], out_specs=XY))(placed)
            np.testing.assert_array_equal(inferred, VALUE + 2)
            halves = jax.shard_map(lambda v: v + v.shape[0], out_specs=X, axis_names={"x"})
            result = jax.jit(halves)(placed)
            np.testing.assert_array_equal(result, VALUE + 4)
            assert result.sharding.spec == XY
        with subtests.test("another mesh"), pytest.raises(ValueError, match="mesh"):
            jax.shard_map(same, mesh=explicit(mesh_of(4, 2)), in_specs=XY, out_specs=XY)(placed)
    with subtests.test("none at all"), pytest.raises(ValueError, match="mesh"):
        jax.shard_map(lambda v: v, in_specs=XY, out_specs=XY)(VALUE)
    with subtests.test("automatic axes"), pytest.raises(TypeError):
        jax.shard_map(lambda v: v, mesh=mesh_of(2, 4), out_specs=XY)(VALUE)


def test_what_is_refused(subtests: pytest.Subtests) -> None:
    """Results that devices do not share, and specs that do not fit."""
    wrong: dict[str, tuple[Callable[..., Any], Any, Any]] = {
        "not the same": (same, (XY,), X),
        "not summed": (lambda v: v.sum()[None], (XY,), WHOLE),
        "summed over the other": (lambda v: lax.psum(v, "x"), (XY,), Spec("x", None)),
        "place": (lambda v: lax.axis_index("y") + 0 * v, (WHOLE,), WHOLE),
        "too long": (same, (Spec("x", None, "y"),), XY),
        "result too long": (lambda v: v.sum(), (XY,), XY),
        "does not divide": (lambda v: v[:1], (Spec("z"),), X),
        "no axis": (same, (XY,), Spec("z")),
        "another tree": (same, ({"a": XY},), XY),
        "another result": (same, (XY,), (XY, XY)),
        "no spec": (same, ("x",), XY),
        "no result's spec": (same, (XY,), "x"),
        "too few": (same, (XY, XY), XY),
    }
    for name, (fn, given, result) in wrong.items():
        for compiled in (False, True):
            with subtests.test(name=name, compiled=compiled), pytest.raises(REFUSALS):
                (jax.jit if compiled else same)(mapped("checked", fn, given, result))(VALUE)
    for shape in ((7, 8), (8, 6)):
        with subtests.test(shape=shape), pytest.raises(ValueError, match="divi"):
            mapped("checked", same, (XY,), XY)(np.zeros(shape, np.float32))
    logarithm = mapped("checked", jnp.log, (XY,), XY)
    with subtests.test("not a number"), jax.debug_nans(True), pytest.raises(FloatingPointError):
        logarithm(VALUE)
    with subtests.test("no function"), pytest.raises(TypeError):
        mapped("checked", 3, (XY,), XY)(VALUE)  # type: ignore[arg-type]
    with subtests.test("no mesh"), pytest.raises((TypeError, AttributeError)):
        checked(same, "mesh", (XY,), XY)(VALUE)
    with subtests.test("over vmap's axis"), pytest.raises(ValueError, match="spmd_axis_name"):
        jax.vmap(mapped("checked", same, (XY,), XY), spmd_axis_name="x")(np.stack([VALUE, VALUE]))
    with subtests.test("without the check"):
        rows = mapped("unchecked", same, (XY,), X)(VALUE)
        assert rows.shape == (8, 2)


def test_devices_in_another_order() -> None:
    """A mesh of turned and reversed devices: an argument moves there, and the result is there."""
    devices = mesh_of(2, 4).devices[::-1, ::-1].T
    mesh = Mesh(devices, ("x", "y"))
    function = checked(lambda v: v * 2 + lax.axis_index("x"), mesh, (XY,), XY)
    expected = VALUE * 2 + np.arange(4).repeat(2)[:, None]
    for value in (VALUE, jax.device_put(VALUE, NamedSharding(mesh, XY))):
        result = jax.jit(function)(value)
        np.testing.assert_array_equal(result, expected)
        for shard in result.addressable_shards:
            row = next(row for row, line in enumerate(devices) if shard.device in line)
            assert (shard.index[0].start or 0) == 2 * row


def test_keys() -> None:
    """Random keys are divided as arrays are, and each device draws what its own keys draw."""
    keys = jax.random.split(jax.random.key(3), 8)
    function = mapped("checked", jax.vmap(jax.random.uniform), (X,), X)
    np.testing.assert_array_equal(jax.jit(function)(keys), jax.vmap(jax.random.uniform)(keys))
    folded = mapped("checked", lambda k: jax.vmap(jax.random.fold_in, (0, None))(k, 5), (X,), X)
    expected = jax.random.key_data(jax.vmap(jax.random.fold_in, (0, None))(keys, 5))
    np.testing.assert_array_equal(jax.random.key_data(jax.jit(folded)(keys)), expected)
