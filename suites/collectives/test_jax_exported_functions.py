"""Functions that JAX exports: written, read and called, their gradients, and what is refused."""

from __future__ import annotations

import collections
import operator
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.sharding import Mesh, NamedSharding

from suites.collectives.exported import written
from suites.shared.global_arrays import Spec, mesh_of
from suites.shared.jax_releases import checked, since_0_5

pytest.importorskip("flatbuffers", reason="jax.export writes with flatbuffers, not installed")
pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("8"),
    pytest.mark.upstream("jax-ml/jax#40830"),
    pytest.mark.deadline(120),
    since_0_5,
]
SIZES = ((1, 2), (3, 4), (8, 6))


def shape_of(*dimensions: Any, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dimensions, dtype)


def numbers(*shape: int) -> np.ndarray:
    return (np.arange(np.prod(shape)).reshape(shape) * 37 % 11 - 4).astype(np.float32)


# What is computed of a matrix whose sizes are known only when it is called.
PROGRAMS: dict[str, tuple[Callable[[Any], Any], Callable[[np.ndarray], Any]]] = {
    "product": (lambda x: x @ x.T, lambda x: x @ x.T),
    "einsum": (
        lambda x: jnp.einsum("ij,ij,j->i", x, x, x[0]),
        lambda x: np.einsum("ij,ij,j->i", x, x, x[0]),
    ),
    "reshaped": (lambda x: x.reshape(-1, 2), lambda x: x.reshape(-1, 2)),
    "merged": (lambda x: x.T.reshape(-1), lambda x: x.T.reshape(-1)),
    "mean": (lambda x: x.mean(1), lambda x: x.mean(1)),
    "centred": (lambda x: x - x.sum() / x.size, lambda x: x - x.sum() / x.size),
    "sliced": (lambda x: (x[1:], x[:, :-1], x[::-1]), lambda x: (x[1:], x[:, :-1], x[::-1])),
    "half": (
        lambda x: x[:, : x.shape[1] // 2] + x.shape[0],
        lambda x: x[:, : x.shape[1] // 2] + x.shape[0],
    ),
    "padded": (
        lambda x: jnp.pad(x, ((x.shape[0], 1), (0, 2))),
        lambda x: np.pad(x, ((x.shape[0], 1), (0, 2))),
    ),
    "joined": (
        lambda x: jnp.concatenate([x, x * 2, jnp.ones((1, x.shape[1]))]),
        lambda x: np.concatenate([x, x * 2, np.ones((1, x.shape[1]), np.float32)]),
    ),
    "counted": (lambda x: jnp.arange(x.shape[0] + 2), lambda x: np.arange(len(x) + 2, dtype="i4")),
    "sorted": (lambda x: jnp.sort(x, 1), lambda x: np.sort(x, 1)),
    "largest": (lambda x: jnp.argmax(x, 1), lambda x: x.argmax(1).astype("i4")),
    "cumulated": (lambda x: jnp.cumsum(x, 0), lambda x: x.cumsum(0)),
    "scanned": (
        lambda x: lax.scan(lambda carry, row: (carry + row, carry.sum()), x[0], x)[0],
        lambda x: x[0] + x.sum(0),
    ),
    "outer": (lambda x: x[:, None] + x[None], lambda x: x[:, None] + x[None]),
    "mapped": (
        jax.vmap(lambda row: row * row.shape[0] + row.max()),
        lambda x: x * x.shape[1] + x.max(1, keepdims=True),
    ),
    "while": (
        lambda x: lax.fori_loop(0, x.shape[0], lambda i, total: total + x[i], x[0] * 0),
        lambda x: x.sum(0),
    ),
}


def test_several_sizes(subtests: pytest.Subtests) -> None:
    """One exported program for matrices of all sizes, as NumPy computes each."""
    a, half = export.symbolic_shape("a, b")
    exported = export.export(
        jax.jit(lambda x: {name: program(x) for name, (program, _) in PROGRAMS.items()})
    )(shape_of(a, 2 * half))
    again = written(exported)
    assert [str(aval.shape) for aval in again.in_avals] == ["(a, 2*b)"]
    assert [str(v.shape) for v in again.out_avals] == [str(v.shape) for v in exported.out_avals]
    for sizes in SIZES:
        x = numbers(*sizes)
        results = (exported if sizes == SIZES[0] else again).call(x)
        for name, (_, by_numpy) in PROGRAMS.items():
            got, expected = jax.tree.leaves(results[name]), jax.tree.leaves(by_numpy(x))
            with subtests.test(name=name, sizes=sizes):
                for array, own in zip(got, expected, strict=True):
                    assert array.dtype == own.dtype
                    np.testing.assert_allclose(array, own, rtol=1e-5)


# Arguments' shapes, constraints, the sizes that they mean, and sizes that must be refused.
SOLVED: dict[str, tuple[tuple[str, ...], tuple[str, ...], list[Any], list[Any]]] = {
    "square": (("a, a",), (), [((4, 4),)], [((4, 5),)]),
    "sum": (("a, a + b",), (), [((2, 5),)], [((3, 3),), ((3, 2),)]),
    "multiple": (("2*a + 1",), (), [((7,),)], [((6,),), ((1,),)]),
    "negative": (("9 - a",), (), [((4,),)], [((9,),), ((12,),)]),
    "two": (("a", "a + 2*b"), (), [((3,), (7,))], [((3,), (6,)), ((3,), (3,))]),
    "later": (("a*b", "a", "b"), (), [((12,), (3,), (4,))], [((11,), (3,), (4,))]),
    "constrained": (
        ("a, b",),
        ("a >= 3", "b <= a"),
        [((3, 3),), ((4, 1),)],
        [((2, 2),), ((3, 4),)],
    ),
    "even": (("a",), ("mod(a, 2) == 0",), [((6,),)], [((5,),)]),
    "equal": (("a, b",), ("a == 2*b",), [((6, 3),)], [((6, 4),)]),
    "maximum": (("max(a, 3), a",), (), [((3, 2),), ((5, 5),)], [((4, 2),)]),
    "whole": (("a, floordiv(a, 2), mod(a, 3)",), (), [((7, 3, 1),)], [((7, 4, 1),), ((7, 3, 2),)]),
    "constant": (("a, 3",), (), [((1, 3),)], [((1, 4),), ((3,),), ((1, 3, 1),)]),
}


@pytest.mark.long
def test_sizes_of_a_call(subtests: pytest.Subtests) -> None:
    """Dimensions are solved from the sizes of the arguments, and others are refused."""

    def program(*arrays: Any) -> list[Any]:
        return [array * array.size for array in arrays]

    for name, (texts, constraints, right, wrong) in SOLVED.items():
        scope = export.SymbolicScope(constraints)
        shapes = [export.symbolic_shape(text, scope=scope) for text in texts]
        exported = written(export.export(jax.jit(program))(*(shape_of(*s) for s in shapes)))
        for sizes in right:
            with subtests.test(name=name, sizes=sizes):
                arrays = [numbers(*size) for size in sizes]
                for got, array in zip(exported.call(*arrays), arrays, strict=True):
                    np.testing.assert_array_equal(got, array * array.size)
        for sizes in wrong:
            with subtests.test(name=name, refused=sizes), pytest.raises(ValueError):
                exported.call(*(numbers(*size) for size in sizes))
    for texts in (("a*b",), ("a + b", "a + 2*b"), ("a^2",), ("mod(a, 2)",)):
        scope = export.SymbolicScope()
        shapes = [export.symbolic_shape(text, scope=scope) for text in texts]
        with subtests.test(unsolvable=texts), pytest.raises(ValueError, match="solve"):
            export.export(jax.jit(program))(*(shape_of(*s) for s in shapes))
    for constraints in (("a >= 5", "a <= 4"), ("a == 3", "a >= 4"), ("2*a == 5",), ("a <= 0",)):
        with subtests.test(unsatisfiable=constraints), pytest.raises(ValueError, match="nsatisf"):
            operator.ge(*export.symbolic_shape("a, b", constraints=constraints))


def test_called_with_other_dimensions(subtests: pytest.Subtests) -> None:
    """An exported function in another one, whose dimensions are expressions of its own."""
    inner = export.export(jax.jit(lambda x: (jnp.concatenate([x, x[:1]]), x.shape[0] * x.shape[1])))
    a, b = export.symbolic_shape("a, b", constraints=("a >= 2",))
    exported = inner(shape_of(a, b))
    again = written(exported)

    def program(x: Any, called: Any = again) -> Any:
        joined, size = called.call(x.T)
        return joined.sum(0), size

    c, d = export.symbolic_shape("c, d")
    outer = written(export.export(jax.jit(program))(shape_of(c, d + 1)))
    for shape in ((3, 2), (2, 5)):
        x = numbers(*shape)
        with subtests.test(shape=shape):
            total, size = outer.call(x)
            np.testing.assert_array_equal(total, x.sum(1) + x[:, 0])
            assert size == x.size
    with subtests.test("not decided"), pytest.raises(Exception) as refused:
        export.export(jax.jit(lambda x: program(x, exported)))(shape_of(c, d))
    assert type(refused.value).__name__ in ("InconclusiveDimensionOperation", "ValueError")


def loss(x: Any, w: Any, n: Any, *, scale: Any) -> Any:
    del n
    return {"y": jnp.sin(x @ w) * scale, "n": jnp.argmax(x, 1)}


@pytest.mark.long
def test_gradients(subtests: pytest.Subtests) -> None:
    """Of what was exported, and of what was read, as many times as it was written with them."""
    x, w, n, scale = numbers(3, 4) / 7, numbers(4, 2) / 5, np.arange(3), np.float32(1.5)
    a = export.symbolic_shape("a")[0]
    shapes = shape_of(a, 4), shape_of(4, 2), shape_of(a, dtype="int32")
    exported = export.export(jax.jit(loss))(*shapes, scale=shape_of())
    n = n.astype(np.int32)

    def total(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x, w, scale: (function(x, w, n, scale=scale)["y"] ** 2).sum()

    def second(function: Callable[..., Any]) -> Callable[..., Any]:
        first = jax.grad(total(function))
        return jax.grad(lambda x: (first(x, w, scale) ** 2).sum())

    z = x @ w
    back = 2 * np.sin(z) * np.cos(z) * scale**2
    expected = back @ w.T, x.T @ back, 2 * scale * (np.sin(z) ** 2).sum()
    for order in (None, 1, 2):
        called = (exported if order is None else written(exported, order)).call
        with subtests.test(order=order):
            gradients = jax.grad(total(called), (0, 1, 2))(x, w, scale)
            for got, own in zip(gradients, expected, strict=True):
                np.testing.assert_allclose(got, own, rtol=1e-4, atol=1e-4)
            if order == 2:
                np.testing.assert_allclose(second(called)(x), second(loss)(x), rtol=1e-3, atol=1e-3)
    for order in (0, 1, 2):
        again = written(exported, order)
        with subtests.test("how many", order=order):
            for _ in range(order):
                assert again.has_vjp()
                again = again.vjp()
            assert not again.has_vjp()
            with pytest.raises(ValueError, match="VJP"):
                again.vjp()
    with subtests.test("none"), pytest.raises(ValueError, match="VJP"):
        jax.grad(total(written(exported).call))(x, w, scale)
    pullback = exported.vjp()
    with subtests.test("as a function"):
        ones = np.ones((3, 2), np.float32), np.zeros(3, jax.dtypes.float0)
        of_x, of_w, of_n, of_scale = pullback.call(x, w, n, scale, ones[1], ones[0])
        np.testing.assert_allclose(of_x, (np.cos(z) * scale) @ w.T, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(of_w, x.T @ (np.cos(z) * scale), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(of_scale, np.sin(z).sum(), rtol=1e-4)
        assert of_n.dtype == jax.dtypes.float0


def test_called_within_others(subtests: pytest.Subtests) -> None:
    """In scan, on each device's part in shard_map, and on each device in pmap; not in vmap."""
    rows = export.export(jax.jit(lambda row: row.cumsum() * 2))(shape_of(4))
    called = written(rows).call
    x = numbers(8, 4)
    expected = x.cumsum(1) * 2
    with subtests.test("scan"):
        _, got = lax.scan(lambda carry, row: (carry, called(row)), 0, x)
        np.testing.assert_array_equal(got, expected)
    with subtests.test("shard_map"):
        on_parts = checked(lambda part: called(part[0])[None], mesh_of(8), (Spec("x"),), Spec("x"))
        np.testing.assert_array_equal(jax.jit(on_parts)(x), expected)
    with subtests.test("pmap"):
        np.testing.assert_array_equal(jax.pmap(called)(x), expected)
    with subtests.test("vmap"), pytest.raises(NotImplementedError):
        jax.vmap(called)(x)


class Pair(NamedTuple):
    first: Any
    second: Any


class Tagged:
    def __init__(self, value: Any, tag: str) -> None:
        self.value, self.tag = value, tag


def _tagged(tag: str, values: tuple[Any, ...]) -> Tagged:
    return Tagged(values[0], tag)


def test_trees(subtests: pytest.Subtests) -> None:
    """Arguments and results of all kinds of containers, and of classes that were registered."""
    jax.tree_util.register_pytree_node(
        Tagged, lambda tagged: ((tagged.value,), tagged.tag), _tagged
    )

    def program(pair: Any, *rest: Any, **named: Any) -> Any:
        first = pair.first[0]["a"]
        results = [Pair(first * 2, None), (Tagged(rest[0].value + 1, "result"),)]
        return collections.OrderedDict(b=results, a=named["last"][1] - first)

    arguments = Pair([{"a": numbers(3)}], ()), Tagged(numbers(2), "given")
    named = {"last": (None, numbers(3) * 3), "unused": {"z": numbers(1)}}
    exported = export.export(jax.jit(program))(*arguments, **named)
    with subtests.test("not registered"), pytest.raises(ValueError, match="register"):
        exported.serialize()
    export.register_namedtuple_serialization(Pair, serialized_name="suites.Pair")
    encode = {"serialize_auxdata": str.encode, "deserialize_auxdata": bytes.decode}
    export.register_pytree_node_serialization(Tagged, serialized_name="suites.Tagged", **encode)
    registrations: list[Callable[[], Any]] = [
        lambda: export.register_namedtuple_serialization(Pair, serialized_name="suites.Other"),
        lambda: export.register_pytree_node_serialization(
            Tagged, serialized_name="suites.Other", **encode
        ),
        lambda: export.register_namedtuple_serialization(tuple, serialized_name="suites.tuple"),
        lambda: export.register_pytree_node_serialization(
            np.ndarray, serialized_name="suites.Unknown", **encode
        ),
        lambda: export.register_pytree_node_serialization(
            Pair, serialized_name="suites.Again", **encode
        ),
    ]
    for wrong in registrations:
        with subtests.test("registered wrongly"), pytest.raises(ValueError):
            wrong()
    again = written(exported)
    assert (again.in_tree, again.out_tree) == (exported.in_tree, exported.out_tree)
    for called in (exported, again):
        with subtests.test("called"):
            result = called.call(*arguments, **named)
            assert list(result) == ["b", "a"]
            assert isinstance(result, collections.OrderedDict)
            (pair, (tagged,)) = result["b"]
            assert (type(pair), pair.second, tagged.tag) == (Pair, None, "result")
            np.testing.assert_array_equal(pair.first, numbers(3) * 2)
            np.testing.assert_array_equal(tagged.value, numbers(2) + 1)
            np.testing.assert_array_equal(result["a"], numbers(3) * 2)
    with subtests.test("another tree"), pytest.raises(ValueError, match="structure"):
        again.call(*arguments, last=named["last"])
    with subtests.test("another tag"), pytest.raises(ValueError, match="structure"):
        again.call(arguments[0], Tagged(numbers(2), "other"), **named)


DTYPES = (
    *("bool", "int4", "uint4", "int8", "uint8", "int16", "uint16", "int32", "uint32"),
    *("float16", "bfloat16", "float32", "complex64", "float8_e4m3fn", "float8_e5m2"),
    *("float8_e4m3b11fnuz", "float8_e4m3fnuz", "float8_e5m2fnuz"),
)


@pytest.mark.long
def test_what_is_written(subtests: pytest.Subtests) -> None:
    """Each dtype, weak types, unused arguments, platforms, and the name."""

    def reversed_all(arrays: dict[str, Any], unused: Any, number: Any) -> Any:
        del unused
        return {name: array[::-1] for name, array in arrays.items()}, number * 2

    shapes = {name: shape_of(3, dtype=name) for name in DTYPES}
    exported = export.export(jax.jit(reversed_all), platforms=["tpu", "cpu"])(
        shapes, shape_of(5), 3
    )
    again = written(exported)
    for of in (exported, again):
        assert of.fun_name == "reversed_all"
        assert set(of.platforms) == {"tpu", "cpu"}
        assert of.nr_devices == 1
        assert [aval.dtype.name for aval in of.in_avals[: len(DTYPES)]] == sorted(DTYPES)
        assert "stablehlo" in of.mlir_module()
    for avals, others in (
        (again.in_avals, exported.in_avals),
        (again.out_avals, exported.out_avals),
    ):
        assert [(v.shape, v.dtype) for v in avals] == [(v.shape, v.dtype) for v in others]
    assert again.calling_convention_version == exported.calling_convention_version
    assert tuple(again.module_kept_var_idx) == tuple(exported.module_kept_var_idx)
    assert len(again.module_kept_var_idx) == len(again.in_avals) - 1
    values = {name: jnp.array([0, 1, 1], name) for name in DTYPES}
    results, doubled = again.call(values, numbers(5), 3)
    assert doubled == 6
    for name, result in results.items():
        with subtests.test(dtype=name):
            assert result.dtype == name
            np.testing.assert_array_equal(result.astype("float32"), [1, 1, 0])
    with subtests.test("no artifact"), pytest.raises(Exception, match=r"\w"):
        export.deserialize(bytearray(b"artifact of nothing at all"))


def refusals() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield what must be refused, by name."""
    double = jax.jit(lambda x: x * 2)
    exported = export.export(double)(shape_of(4))
    other = export.export(double, platforms=["cuda"])(shape_of(4))
    mesh = mesh_of(8)
    on_all = export.export(jax.jit(double, out_shardings=NamedSharding(mesh, Spec("x"))))
    divided = jax.device_put(numbers(8), NamedSharding(mesh, Spec("x")))
    four = Mesh(mesh.devices[:4], ("x",))
    yield "a function", lambda: export.export(np.sin)(numbers(4))
    yield "a size", lambda: exported.call(numbers(5))
    yield "a rank", lambda: exported.call(numbers(2, 2))
    yield "a dtype", lambda: exported.call(numbers(4).astype(np.int32))
    yield "an argument", lambda: exported.call(numbers(4), numbers(4))
    yield "no argument", exported.call
    yield "a name", lambda: exported.call(x=numbers(4))
    yield "a platform", lambda: other.call(numbers(4))
    yield "on one device", lambda: on_all(divided).call(numbers(8))
    yield (
        "on four devices",
        lambda: on_all(divided).call(jax.device_put(numbers(8), NamedSharding(four, Spec("x")))),
    )
    yield (
        "a gradient of too high an order",
        lambda: jax.grad(lambda x: jax.grad(lambda x: written(exported, 1).call(x).sum())(x).sum())(
            numbers(4)
        ),
    )


def test_what_is_refused(subtests: pytest.Subtests) -> None:
    for name, operation in refusals():
        with subtests.test(name=name), pytest.raises((TypeError, ValueError)):
            operation()
    with subtests.test("a platform that is not asked about"):
        exported = export.export(
            jax.jit(lambda x: x * 2),
            platforms=["cuda"],
            disabled_checks=[export.DisabledSafetyCheck.platform()],
        )(shape_of(4))
        for called in (exported, written(exported)):
            np.testing.assert_array_equal(called.call(numbers(4)), numbers(4) * 2)
    with subtests.test("checks"):
        check = export.DisabledSafetyCheck
        assert check.platform() == check.platform() != check.custom_call("target")
        assert check.custom_call("target") == check.custom_call("target") != check.custom_call("a")
        assert len({check.platform(), check.platform(), check.custom_call("a")}) == 2
        assert check.custom_call("target").is_custom_call() == "target"
        assert check.platform().is_custom_call() is None
        kept = written(
            export.export(
                jax.jit(jnp.sin), disabled_checks=[check.custom_call("target"), check.platform()]
            )(shape_of(4))
        )
        assert list(kept.disabled_safety_checks) == [check.custom_call("target"), check.platform()]


def test_on_a_mesh(subtests: pytest.Subtests) -> None:
    """A function of divided arrays, on the same devices in another order."""
    mesh, other = mesh_of(2, 4), Mesh(mesh_of(2, 4).devices[::-1, ::-1], ("x", "y"))
    x, w = numbers(8, 4), numbers(4, 8)
    specs = Spec("x", None), Spec(None, ("x", "y"))
    places = [NamedSharding(mesh, spec) for spec in specs]

    def program(x: Any, w: Any) -> Any:
        halves = checked(lambda part: part - part.mean(), mesh, (Spec("x"),), Spec("x"))(x)
        return halves @ w, (x * 2).sum(0)

    results = NamedSharding(mesh, Spec("x", "y")), NamedSharding(mesh, Spec())
    jitted = jax.jit(program, in_shardings=places, out_shardings=results)
    exported = export.export(jitted)(x, w)
    centred = x - x.reshape(2, 4, 4).mean((1, 2)).repeat(4)[:, None]
    for called in (exported, written(exported, 1)):
        assert called.nr_devices == 8
        on = [*called.in_shardings_jax(other), *called.out_shardings_jax(other)]
        shapes = [*((8, 4), (4, 8)), *((8, 8), (4,))]
        for sharding, shape, spec in zip(on, shapes, (*specs, Spec("x", "y"), Spec()), strict=True):
            there = NamedSharding(other, spec)
            with subtests.test(spec=spec):
                assert sharding.is_equivalent_to(there, len(shape))
        given = [jax.device_put(*pair) for pair in zip((x, w), on[:2], strict=True)]
        with subtests.test("called"):
            product, total = called.call(*given)
            np.testing.assert_allclose(product, centred @ w, rtol=1e-5, atol=1e-4)
            np.testing.assert_allclose(total, 2 * x.sum(0))
        with subtests.test("gradient"):
            of_w = jax.jit(jax.grad(lambda x, w, of=called: of.call(x, w)[0].sum(), 1))(*given)
            expected = np.broadcast_to(centred.sum(0)[:, None], w.shape)
            np.testing.assert_allclose(of_w, expected, rtol=1e-4, atol=1e-3)
