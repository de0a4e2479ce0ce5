"""JAX's partition specs: every way to place an array, to move it, and to compute with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh

from harness.lanes.aot.case_compiler import CaseCompiler
from harness.lanes.aot.optimized import Optimized
from harness.model.topology import Topology
from suites.shared.jax_releases import unreadable_before_0_4_30
from suites.spmd_specs.jax_layouts import (
    Entry,
    check,
    mesh_of_two_rows,
    name_of,
    partitioned_by,
    sharding,
    specs,
)

pytestmark = [
    pytest.mark.lanes("cpu", "virtual-*", "tpu"),
    pytest.mark.topologies("8"),
    pytest.mark.upstream("jax-ml/jax#26946"),
    unreadable_before_0_4_30,
]
SHAPES = {0: (), 1: (16,), 2: (8, 16)}
Layout = tuple[Entry, ...]


def value_of(*shape: int) -> np.ndarray:
    """Odd integers, most of which bfloat16 lacks; float32 has their sums, in every order."""
    random = np.random.default_rng([len(shape), *shape])
    return (2 * random.integers(-300, 300, shape) + 1).astype(np.float32)


def factor_of(*shape: int) -> np.ndarray:
    """Integers that bfloat16 has, in which a TPU multiplies, but most of whose sums it lacks."""
    random = np.random.default_rng([len(shape), *shape])
    large = 256 * random.integers(-2, 3, shape)
    small = random.integers(-8, 9, shape)
    return np.where(random.random(shape) < 1 / 4, large, small).astype(np.float32)


@pytest.mark.topologies("8", "2x4")
@pytest.mark.parametrize("rank", SHAPES)
def test_placed(topology: Topology, subtests: pytest.Subtests, rank: int) -> None:
    """Placed by device_put, and made part by part from a callback."""
    mesh, value = mesh_of_two_rows(), value_of(*SHAPES[rank])
    assert mesh.size == topology.total
    for entries in specs(rank):
        to = sharding(mesh, entries)
        with subtests.test(spec=name_of(entries)):
            check(jax.device_put(value, to), value, mesh, entries)
            made = jax.make_array_from_callback(value.shape, to, value.__getitem__)
            check(made, value, mesh, entries)


ROWS, WIDTH = 1024, 256  # large against the sums of a gradient's rows


@pytest.mark.long
@pytest.mark.lanes("*-aot")
@pytest.mark.topologies("2xv6e:2x2", "2xh100:4")
def test_compiles(
    topology: Topology, xla_compiler: CaseCompiler, subtests: pytest.Subtests
) -> None:
    """Megatron's pair of layers: over which devices its sums go, and what crosses.

    Rows are divided over one axis and weights over the other. Where that is inside of slices or
    nodes, activations stay there, and of the gradients each device sends its shard once.
    """
    devices = np.array(xla_compiler.devices).reshape(topology.slices, -1)
    shards = 2 * 4 * WIDTH * WIDTH // topology.devices

    def compiled(fn: Callable[..., Any], rows: str, weights: str) -> Optimized:
        mesh = Mesh(devices, ("x", "y"))
        entries = ((None, weights), (weights, None), (rows, None))
        shapes = ((WIDTH, WIDTH), (WIDTH, WIDTH), (ROWS, WIDTH))
        arguments = [
            jax.ShapeDtypeStruct(shape, "float32", sharding=sharding(mesh, entry))
            for shape, entry in zip(shapes, entries, strict=True)
        ]
        divided = [sharding(mesh, entry) for entry in entries]
        results = tuple(divided[:2]) if fn is gradients else divided[2]
        return xla_compiler.jax(jax.jit(fn, out_shardings=results), *arguments).program

    def forward(first: jax.Array, second: jax.Array, x: jax.Array) -> jax.Array:
        return jax.nn.relu(x @ first) @ second

    gradients = jax.grad(lambda *arrays: (forward(*arrays) ** 2).mean(), (0, 1))
    with subtests.test("activations inside"):
        inside = compiled(forward, "x", "y")
        assert (inside.bytes_across, len(inside.collectives)) == (0, 1)
    with subtests.test("activations between slices"):
        across = compiled(forward, "y", "x").bytes_across
        assert across >= 4 * ROWS // topology.devices * WIDTH // topology.slices
    with subtests.test("gradients"):
        crossing = compiled(gradients, "x", "y")
        assert shards <= crossing.bytes_across <= 1.05 * shards, crossing.transfers


empty = pytest.mark.parametrize("shape", [(0,), (0, 16), (8, 0)], ids=str)


@empty
def test_empty(subtests: pytest.Subtests, shape: tuple[int, ...]) -> None:
    """An array without elements can be placed in every way."""
    mesh, value = mesh_of_two_rows(), value_of(*shape)
    for entries in specs(len(shape)):
        with subtests.test(spec=name_of(entries)):
            check(jax.device_put(value, sharding(mesh, entries)), value, mesh, entries)


@empty
def test_computed_empty(subtests: pytest.Subtests, shape: tuple[int, ...]) -> None:
    """A program's result without elements is divided as asked, too."""
    mesh, value = mesh_of_two_rows(), value_of(*shape)
    for entries in specs(len(shape)):
        to = sharding(mesh, entries)
        with subtests.test(spec=name_of(entries)):
            result = jax.jit(lambda v: v + 1, out_shardings=to)(jax.device_put(value, to))
            check(result, value + 1, mesh, entries)


def test_uneven_is_refused(subtests: pytest.Subtests) -> None:
    """Parts of different sizes can't be placed: an error, and no padded array."""
    mesh = mesh_of_two_rows()
    for shape, entries in (((7,), ("x",)), ((6, 8), ("y", None)), ((8, 12), (None, ("x", "y")))):
        with subtests.test(spec=name_of(entries)), pytest.raises(ValueError):
            jax.device_put(value_of(*shape), sharding(mesh, entries))


@pytest.mark.long
@pytest.mark.parametrize("rank", [1, 2])
def test_moved(subtests: pytest.Subtests, rank: int) -> None:
    """From each spec to each other: by device_put, as a program's result, by a constraint in it."""
    mesh, value = mesh_of_two_rows(), value_of(*SHAPES[rank])
    every = list(specs(rank))
    for number, source in enumerate(every):
        # Of rank 2 there are too many pairs: each spec goes to three others.
        targets = every if rank == 1 else [every[(number * 5 + n) % len(every)] for n in (1, 4, 9)]
        placed = jax.device_put(value, sharding(mesh, source))
        for target in targets:
            to = sharding(mesh, target)
            with subtests.test(move=f"{name_of(source)} to {name_of(target)}"):
                check(jax.device_put(placed, to), value, mesh, target)
                check(jax.jit(lambda v: v * 2, out_shardings=to)(placed), value * 2, mesh, target)
                constrained = jax.jit(
                    lambda v, to=to: lax.with_sharding_constraint(v * 2, to) + 1, out_shardings=to
                )
                check(constrained(placed), value * 2 + 1, mesh, target)


@pytest.mark.parametrize("target", [("x", "y"), ("y", "x"), (None, None)], ids=name_of)
def test_donated(target: Layout) -> None:
    """A donated array is gone afterwards, whether or not the result could take its memory."""
    mesh, value = mesh_of_two_rows(), value_of(8, 16)
    placed = jax.device_put(value, sharding(mesh, ("x", "y")))
    step = jax.jit(lambda v: v + 1, donate_argnums=0, out_shardings=sharding(mesh, target))
    check(step(placed), value + 1, mesh, target)
    if target == ("x", "y"):
        assert placed.is_deleted()


def _scanned(v: Any) -> Any:
    return lax.scan(lambda carry, _: (carry + 1, carry.sum()), v, None, length=3)[0]


def _convolved(v: Any) -> Any:
    return lax.conv_general_dilated(v[None, None], jnp.ones((1, 1, 3, 3)), (1, 1), "SAME")[0, 0]


def _convolved_by_numpy(v: np.ndarray) -> np.ndarray:
    padded = np.pad(v, 1)
    rows, columns = v.shape
    return sum(  # type: ignore[return-value]
        padded[i : i + rows, j : j + columns] for i in range(3) for j in range(3)
    )


def _updated(v: np.ndarray) -> np.ndarray:
    result = v.copy()
    result[5:7, 9:13] = v[:2, :4] * 2
    return result


def _scattered(v: np.ndarray) -> np.ndarray:
    result = v.copy()
    np.add.at(result, [1, 1, 6], 1)
    return result


# What the partitioner has to know: a program, the same by NumPy, how its operand and its result
# are divided.
Numpy = Callable[[np.ndarray], np.ndarray]
OPERATORS: dict[str, tuple[Callable[[Any], Any], Numpy, Layout, Layout]] = {
    "dot_contracted": (lambda v: v @ v.T, lambda v: v @ v.T, (None, ("x", "y")), ("x", "y")),
    "dot_partial": (lambda v: v @ v.T, lambda v: v @ v.T, ("x", "y"), ("x", None)),
    "reduce": (lambda v: v.sum(1), lambda v: v.sum(1), (None, "y"), ("x",)),
    "reduce_all": (lambda v: v.max(), lambda v: v.max(), ("x", "y"), ()),
    "broadcast": (
        lambda v: jnp.broadcast_to(v[:, None, :4], (8, 2, 4)),
        lambda v: np.broadcast_to(v[:, None, :4], (8, 2, 4)),
        ("x", "y"), ("x", None, "y"),
    ),
    "transpose": (lambda v: v.T, lambda v: v.T, ("x", "y"), ("x", "y")),
    "reshape_merge": (lambda v: v.reshape(-1), lambda v: v.reshape(-1), ("x", "y"), (("x", "y"),)),
    "reshape_split": (
        lambda v: v.reshape(8, 4, 4), lambda v: v.reshape(8, 4, 4), (None, ("x", "y")),
        ("y", "x", None),
    ),
    "slice": (lambda v: v[1:5, 3:11], lambda v: v[1:5, 3:11], ("x", "y"), ("x", "y")),
    "dynamic_slice": (
        lambda v: lax.dynamic_slice(v, (v[0, 0].astype(int) % 1 + 2, 5), (4, 8)),
        lambda v: v[2:6, 5:13], ("x", "y"), ("x", "y"),
    ),
    "update": (
        lambda v: lax.dynamic_update_slice(v, v[:2, :4] * 2, (5, 9)),
        _updated, ("x", "y"), ("x", "y"),
    ),
    "concatenate": (
        lambda v: jnp.concatenate([v, v * 2]), lambda v: np.concatenate([v, v * 2]),
        ("x", "y"), ("x", "y"),
    ),
    "pad": (
        lambda v: jnp.pad(v, ((3, 5), (0, 8)), constant_values=7),
        lambda v: np.pad(v, ((3, 5), (0, 8)), constant_values=7), ("x", "y"), ("x", "y"),
    ),
    "reverse": (lambda v: v[::-1, ::-1], lambda v: v[::-1, ::-1], ("x", "y"), ("x", "y")),
    "roll": (lambda v: jnp.roll(v, 3, 1), lambda v: np.roll(v, 3, 1), ("x", "y"), ("x", "y")),
    "cumulative": (
        lambda v: jnp.cumsum(v, 1), lambda v: np.cumsum(v, 1), (None, ("x", "y")), ("x", "y"),
    ),
    "sort": (lambda v: jnp.sort(v, 1), lambda v: np.sort(v, 1), ("x", "y"), ("x", "y")),
    "argmax": (
        lambda v: jnp.argmax(v, 1), lambda v: np.argmax(v, 1).astype(np.int32), ("x", "y"), ("x",),
    ),
    "gather": (
        lambda v: v[jnp.array([7, 0, 3, 3])], lambda v: v[[7, 0, 3, 3]], ("x", "y"), (None, "y"),
    ),
    "scatter_add": (
        lambda v: v.at[jnp.array([1, 1, 6])].add(1), _scattered, ("x", "y"),
        ("x", "y"),
    ),
    "convolution": (_convolved, _convolved_by_numpy, ("x", "y"), ("x", "y")),
    "scan": (_scanned, lambda v: v + 3, ("x", "y"), ("x", "y")),
    "conditional": (
        lambda v: lax.cond(v.sum() > 1e6, lambda u: u, lambda u: u * 2, v), lambda v: v * 2,
        ("x", "y"), ("y", "x"),
    ),
    "select": (
        lambda v: jnp.where(v > 0, v, v.T.reshape(v.shape)),
        lambda v: np.where(v > 0, v, v.T.reshape(v.shape)), ("x", "y"), ("x", "y"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_operator(operator: str, partitioner: str) -> None:
    """The program over divided arrays is NumPy's, and so is the one on one device."""
    program, by_numpy, source, target = OPERATORS[operator]
    multiplies = operator in ("dot_contracted", "dot_partial", "convolution")
    value = factor_of(8, 16) if multiplies else value_of(8, 16)
    expected = np.asarray(by_numpy(value))
    assert np.array_equal(jax.jit(program)(value), expected), "on one device"
    mesh = mesh_of_two_rows()
    placed = jax.device_put(value, sharding(mesh, source))
    with partitioned_by(partitioner):
        result = jax.jit(program, out_shardings=sharding(mesh, target))(placed)
        check(result, expected, mesh, target)


@pytest.mark.lanes("virtual-*")
@pytest.mark.topologies(1)
@pytest.mark.parametrize("operator", OPERATORS)
def test_operator_on_one_device(operator: str) -> None:
    """What a machine with one device can be asked: the program is NumPy's there, too."""
    program, by_numpy, source, target = OPERATORS[operator]
    multiplies = operator in ("dot_contracted", "dot_partial", "convolution")
    value = factor_of(8, 16) if multiplies else value_of(8, 16)
    mesh = mesh_of_two_rows()
    placed = jax.device_put(value, sharding(mesh, source))
    result = jax.jit(program, out_shardings=sharding(mesh, target))(placed)
    check(result, np.asarray(by_numpy(value)), mesh, target)


@pytest.mark.parametrize("source", [("x", "y"), ("y", None), (None, ("x", "y"))], ids=name_of)
def test_gradient(source: Sequence[Entry]) -> None:
    """The gradient of a loss over a divided array is divided as asked, and right."""
    mesh, value = mesh_of_two_rows(), factor_of(8, 16)
    placed = jax.device_put(value, sharding(mesh, source))
    factor = factor_of(8, 8)  # not symmetric, so each of the product's operands has its own part
    step = jax.jit(
        jax.grad(lambda v: (v * v).sum() + (v @ v.T * factor).sum()), out_shardings=placed.sharding
    )
    check(step(placed), 2 * value + (factor + factor.T) @ value, mesh, source)
