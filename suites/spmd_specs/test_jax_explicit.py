"""Arrays over explicit mesh axes: the sharding is a part of the type, and operators give theirs.

The expected specs are those that JAX documents, and NumPy computes the values:
https://docs.jax.dev/en/latest/notebooks/explicit-sharding.html
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from suites.shared.jax_compiled import exchanges
from suites.shared.jax_releases import explicit, needs_explicit_axes
from suites.spmd_specs.jax_layouts import Entry, check, mesh_of_two_rows, name_of, sharding, specs

pytestmark = [
    pytest.mark.lanes("cpu", "virtual-*", "tpu"),
    pytest.mark.topologies("8"),
    pytest.mark.upstream("marin-community/marin#8715"),
    needs_explicit_axes,
]
Spec = tuple[Entry, ...]
ROWS, COLUMNS = ("x", None), (None, "y")
BOTH: Spec = ("x", "y")
# Sums and products of these are exact in float32, and not in bfloat16.
VALUES = {
    "square": (np.arange(256, dtype=np.float32).reshape(16, 16) % 7 - 3) * (33 / 32),
    "wide": (np.arange(128, dtype=np.float32).reshape(8, 16) % 5) * (513 / 512),
    "again": np.arange(128, dtype=np.float32).reshape(8, 16) % 3,
    "line": np.arange(16, dtype=np.float32) % 3 - 1,
    "other": (np.arange(16, dtype=np.float32) % 4) * (513 / 512),
    "index": np.array([3, 1, 4, 1, 5, 9, 2, 0]),
}


@contextmanager
def explicit_axes() -> Iterator[Mesh]:
    mesh = explicit(mesh_of_two_rows())
    with jax.set_mesh(mesh):
        yield mesh


def _to(*entries: Entry) -> dict[str, PartitionSpec]:
    return {"out_sharding": PartitionSpec(*entries)}


def _cumulated(v: Any) -> Any:
    return lax.scan(lambda total, row: (total + row, total + row), v[0] * 0, v)[1]


# The function in JAX and in NumPy, its arguments and their specs, and the result's spec.
OPERATORS: dict[str, tuple[Callable[..., Any], Callable[..., Any], dict[str, Spec], Spec]] = {
    "add": (jnp.add, np.add, {"again": BOTH, "wide": BOTH}, BOTH),
    "sum_of_rows": (lambda v: v.sum(0), lambda v: v.sum(0), {"square": BOTH}, ("y",)),
    "sum": (lambda v: v.sum(), lambda v: v.sum(), {"square": BOTH}, ()),
    "largest": (lambda v: v.max(1), lambda v: v.max(1), {"wide": BOTH}, ("x",)),
    "transpose": (jnp.transpose, np.transpose, {"wide": BOTH}, ("y", "x")),
    "outer": (
        lambda v, w: v[:, None] * w[None],
        np.outer,
        {"line": ("x",), "other": ("y",)},
        BOTH,
    ),
    "product": (jnp.matmul, np.matmul, {"wide": ROWS, "square": COLUMNS}, BOTH),
    "product_of_parts": (
        lambda a, b: jnp.einsum("ij,jk->ik", a, b, **_to("x", None)),
        np.matmul,
        {"wide": BOTH, "square": ("y", None)},
        ROWS,
    ),
    "product_scattered": (
        lambda a, b: jnp.einsum("ij,jk->ik", a, b, **_to(None, "y")),
        np.matmul,
        {"wide": COLUMNS, "square": ("y", None)},
        COLUMNS,
    ),
    "taken": (
        lambda v, index: v.at[index].get(**_to("x", None)),
        lambda v, index: v[index],
        {"square": COLUMNS, "index": (None,)},
        ROWS,
    ),
    "concatenated": (
        lambda v: jnp.concatenate([v, v], 1),
        lambda v: np.concatenate([v, v], 1),
        {"wide": ROWS},
        ROWS,
    ),
    "sliced": (lambda v: v[:, 3:11], lambda v: v[:, 3:11], {"square": ROWS}, ROWS),
    "reshaped": (
        lambda v: v.reshape(16, 4, 4),
        lambda v: v.reshape(16, 4, 4),
        {"square": ROWS},
        ("x", None, None),
    ),
    "cumulated": (_cumulated, lambda v: v.cumsum(0), {"square": COLUMNS}, COLUMNS),
    "mapped": (
        jax.vmap(lambda row: row * row.sum()),
        lambda v: v * v.sum(1, keepdims=True),
        {"wide": ROWS},
        ROWS,
    ),
    "sorted": (lambda v: jnp.sort(v, 1), lambda v: np.sort(v, 1), {"wide": ROWS}, ROWS),
    "chosen": (
        lambda v: jnp.where(v > 0, v, 0),
        lambda v: np.where(v > 0, v, 0),
        {"wide": BOTH},
        BOTH,
    ),
}
# Those in which devices need parts of others. The others work on what each device has.
EXCHANGE = {"sum_of_rows", "sum", "largest", "product_of_parts", "product_scattered", "taken"}


@pytest.mark.parametrize("operator", OPERATORS)
def test_operator(operator: str) -> None:
    """The type inside of jit says the spec, and each device has that part of NumPy's result."""
    fn, by_numpy, arguments, expected = OPERATORS[operator]
    values = [VALUES[name] for name in arguments]
    specs = []

    def noted(*given: Any) -> Any:
        result = fn(*given)
        specs.append(jax.typeof(result).sharding.spec)
        return result

    with explicit_axes() as mesh:
        placed = [
            jax.device_put(value, sharding(mesh, spec))
            for value, spec in zip(values, arguments.values(), strict=True)
        ]
        compiled = jax.jit(noted).lower(*placed).compile()
        array = compiled(*placed)
    assert tuple(specs[0]) == expected
    check(array, by_numpy(*values), mesh, expected)
    assert bool(exchanges(compiled)) == (operator in EXCHANGE)


@pytest.mark.parametrize("steps", [1, 4, 7])
def test_reshard(subtests: pytest.Subtests, steps: int) -> None:
    """From every spec to another one, so many further in their order, inside of jit."""
    value, every = VALUES["square"], list(specs(2))
    for number, source in enumerate(every):
        target = every[(number + steps) % len(every)]
        move = f"{name_of(source)} to {name_of(target)}"
        with subtests.test(move=move), explicit_axes() as mesh:
            to = PartitionSpec(*target)
            moved = jax.jit(lambda v, to=to: jax.sharding.reshard(v, to))
            check(moved(jax.device_put(value, sharding(mesh, source))), value, mesh, target)


def test_gradients_have_the_types_of_their_arguments() -> None:
    """Of the sum of a product over a divided dimension: sums over devices, then divided again."""
    a, b = VALUES["wide"], VALUES["square"]

    def loss(a: Any, b: Any) -> Any:
        return (jnp.einsum("ij,jk->ik", a, b, **_to("x", None)) * 2).sum()

    with explicit_axes() as mesh:
        placed = [
            jax.device_put(a, sharding(mesh, BOTH)),
            jax.device_put(b, sharding(mesh, ("y", None))),
        ]
        of_a, of_b = jax.jit(jax.grad(loss, argnums=(0, 1)))(*placed)
    ones = np.full((8, 16), 2, np.float32)
    check(of_a, ones @ b.T, mesh, BOTH)
    check(of_b, a.T @ ones, mesh, ("y", None))


@pytest.mark.parametrize("other", [("y", "x"), ("y", None)], ids=name_of)
def test_different_types_are_refused(other: Spec) -> None:
    """No operator chooses between two ways to divide its result."""
    with explicit_axes() as mesh:
        first, two = (jax.device_put(VALUES["square"], sharding(mesh, s)) for s in (BOTH, other))
        with pytest.raises(Exception, match="sharding") as refused:
            jax.jit(jnp.add)(first, two)
    assert type(refused.value).__name__ == "ShardingTypeError"


PLACED: dict[str, tuple[Callable[[Any, Any], Any], Callable[[np.ndarray], np.ndarray]]] = {
    "reshaped": (
        lambda v, to: lax.reshape(v, (16, 4, 4), out_sharding=to),
        lambda v: v.reshape(16, 4, 4),
    ),
    "repeated": (
        lambda v, to: lax.broadcast_in_dim(v, (4, 16, 16), (1, 2), out_sharding=to),
        lambda v: np.broadcast_to(v, (4, 16, 16)),
    ),
    "outer": (
        lambda v, to: jnp.einsum("ij,jk->ijk", v, v, out_sharding=to),
        lambda v: v[:, :, None] * v,
    ),
}


def test_results_where_a_call_wants_them(subtests: pytest.Subtests) -> None:
    """By a spec of the mesh in use or by a sharding over it, in a program and outside of one."""
    value, entries = VALUES["square"], ("x", "y", None)
    with explicit_axes() as mesh:
        placed = jax.device_put(value, sharding(mesh, (None, None)))
        for name, (fn, by_numpy) in PLACED.items():
            ways = {"spec": PartitionSpec(*entries), "sharding": sharding(mesh, entries)}
            for way, to in ways.items():
                for run in (fn, jax.jit(fn, static_argnums=1)):
                    with subtests.test(name=name, way=way, compiled=run is not fn):
                        check(run(placed, to), by_numpy(value), mesh, entries)


def test_wrong_places_of_results_are_refused(subtests: pytest.Subtests) -> None:
    kinds = jax.sharding.AxisType
    with explicit_axes() as mesh:
        pass
    mixed = Mesh(mesh.devices, ("x", "y"), axis_types=(kinds.Explicit, kinds.Auto))
    turned = Mesh(mesh.devices.T, ("x", "y"), axis_types=mesh.axis_types)
    spec, value = PartitionSpec("x", None, None), jnp.asarray(VALUES["square"])
    wrong: dict[str, tuple[Mesh | None, Any, type[Exception]]] = {
        "no mesh": (None, spec, ValueError),
        "another mesh": (mesh, sharding(turned, spec), ValueError),
        "an axis that is not explicit": (mixed, PartitionSpec(None, None, "y"), ValueError),
        "one of several axes": (mixed, PartitionSpec(None, ("x", "y"), None), ValueError),
        "text": (mesh, "x", TypeError),
    }
    for name, (of, to, error) in wrong.items():
        for operator, (fn, _) in PLACED.items():
            with (
                subtests.test(wrong=name, operator=operator),
                jax.set_mesh(of) if of else nullcontext(),
                pytest.raises(error),
            ):
                fn(value, to)
