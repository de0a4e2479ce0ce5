"""JAX's collectives under vmap: over axes that it names, beside devices' axes, and on batches."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax

from harness.oracles import collectives as oracle
from suites.shared.global_arrays import Spec, mesh_of
from suites.shared.groups import Groups
from suites.shared.jax_collectives import groups_over
from suites.shared.jax_releases import checked, jitted, since_0_5
from suites.shared.values import ranks_of

pytestmark = [
    pytest.mark.lanes("cpu", "virtual-tpu"),
    pytest.mark.topologies("4"),
    pytest.mark.upstream("jax-ml/jax#40830"),
    since_0_5,
]
Names = tuple[str, ...]
Ranks = Sequence[np.ndarray]
Variant = tuple[Callable[[Any], Any], Callable[[Ranks, Groups], list[Any]]]
Variants = dict[tuple[Names, str], Variant]
TURNS = ("0 to 1", "1 to 0")
PART = (8, 8)  # of each rank; as many ranks are in a group at most


def _reduced(reducer: str, xs: Ranks, groups: Groups) -> list[np.ndarray]:
    return oracle.all_reduce(xs, reducer, groups)


def _mean(xs: Ranks, groups: Groups) -> list[np.ndarray]:
    return [x / len(groups[0]) for x in oracle.all_reduce(xs, "sum", groups)]


def _ring(xs: Ranks, groups: Groups) -> list[np.ndarray]:
    pairs = [pair for group in groups for pair in zip(group, (*group[1:], group[0]), strict=True)]
    return oracle.collective_permute(xs, pairs)


def _gathered(axis: int, tiled: bool, xs: Ranks, groups: Groups) -> list[np.ndarray]:
    return oracle.all_gather(xs if tiled else [np.expand_dims(x, axis) for x in xs], axis, groups)


def _scattered(axis: int, tiled: bool, xs: Ranks, groups: Groups) -> list[np.ndarray]:
    if tiled:
        return oracle.reduce_scatter(xs, "sum", axis, groups)
    rows = [x.take(range(len(groups[0])), axis) for x in xs]
    return [part.squeeze(axis) for part in oracle.reduce_scatter(rows, "sum", axis, groups)]


def _exchanged(split: int, concat: int, tiled: bool, xs: Ranks, groups: Groups) -> list[np.ndarray]:
    if tiled:
        return oracle.all_to_all(xs, split, concat, groups)
    results = dict[int, np.ndarray]()
    for group in groups:
        for place, rank in enumerate(group):
            slices = [xs[member].take(place, split) for member in group]
            results[rank] = np.stack(slices, concat)
    return [results[rank] for rank in range(len(xs))]


def _places(xs: Ranks, groups: Groups) -> list[int]:
    places = {rank: place for group in groups for place, rank in enumerate(group)}
    return [places[rank] for rank in range(len(xs))]


def exchange(names: Names, split: int, concat: int, tiled: bool, x: Any) -> Any:
    """Exchange, of as many slices as there are ranks if each is one of theirs."""
    if not tiled:
        x = lax.slice_in_dim(x, 0, lax.psum(1, names), axis=split)
    return lax.all_to_all(x, names, split, concat, tiled=tiled)


def over_any(names: Names) -> dict[str, Variant]:
    """Return the collectives that also go over several axes of which vmap has one."""
    variants: dict[str, Variant] = {
        "psum": (lambda x: lax.psum(x, names), partial(_reduced, "sum")),
        "pmax": (lambda x: lax.pmax(x, names), partial(_reduced, "max")),
        "pmin": (lambda x: lax.pmin(x, names), partial(_reduced, "min")),
        "axis_index": (lambda x: lax.axis_index(names) + 0 * x[0, 0].astype("int32"), _places),
    }
    for split, concat in itertools.product(range(2), repeat=2):
        variants[f"all_to_all {split} to {concat}"] = (
            partial(exchange, names, split, concat, True),
            partial(_exchanged, split, concat, True),
        )
    return variants


def over_one(name: str, size: int) -> dict[str, Variant]:
    """Return the collectives over one axis of that size, along each dimension, tiled or not."""
    ring = [(n, (n + 1) % size) for n in range(size)]
    variants = over_any((name,))
    variants["pmean"] = lambda x: lax.pmean(x, name), _mean
    variants["ppermute"] = lambda x: lax.ppermute(x, name, ring), _ring
    for axis, tiled in ((0, False), (1, False), (2, False), (0, True), (1, True)):
        variants[f"all_gather {axis}{' tiled' * tiled}"] = (
            partial(lax.all_gather, axis_name=name, axis=axis, tiled=tiled),
            partial(_gathered, axis, tiled),
        )
    for axis in range(2):
        variants[f"psum_scatter {axis} tiled"] = (
            partial(lax.psum_scatter, axis_name=name, scatter_dimension=axis, tiled=True),
            partial(_scattered, axis, True),
        )
        for concat in range(2):
            variants[f"all_to_all {axis} to {concat} stacked"] = (
                partial(exchange, (name,), axis, concat, False),
                partial(_exchanged, axis, concat, False),
            )
    return variants


def scattered(name: str, size: int) -> dict[str, Variant]:
    """Return the sums of which each rank keeps a row or a column, without its dimension."""

    def scatter(axis: int, x: Any) -> Any:
        rows = lax.slice_in_dim(x, 0, size, axis=axis)
        return lax.psum_scatter(rows, name, scatter_dimension=axis)

    return {
        f"psum_scatter {axis}": (partial(scatter, axis), partial(_scattered, axis, False))
        for axis in range(2)
    }


def variants_of(sizes: dict[str, int]) -> Variants:
    """Return each collective over each axis, and those over both in each order."""
    first, second = sizes
    named: dict[Names, dict[str, Variant]] = {
        **{(name,): over_one(name, size) for name, size in sizes.items()},
        (first, second): over_any((first, second)),
        (second, first): over_any((second, first)),
    }
    return {(names, name): v for names, of in named.items() for name, v in of.items()}


def all_of(variants: dict[Any, Variant], x: Any) -> dict[Any, Any]:
    """Compute every variant in one program, which is compiled once."""
    return {str(key): program(x) for key, (program, _) in variants.items()}


def check(
    results: dict[str, Any],
    variants: Variants,
    inputs: Ranks,
    sizes: dict[str, int],
    subtests: pytest.Subtests,
) -> None:
    """Check each collective's results, whose first dimension is that of the ranks."""
    for (names, name), (_, meaning) in variants.items():
        with subtests.test(over=names, name=name):
            expected = np.stack(meaning(inputs, groups_over(names, sizes)))
            np.testing.assert_allclose(results[str((names, name))], expected, rtol=1e-6)


def on_batches(
    variants: Variants, place: int, way: Any, **of: Any
) -> tuple[Any, np.ndarray, Ranks]:
    """Return the program of four devices, each with a batch of two, its argument and the parts."""
    inputs = ranks_of(8, PART)
    batches = [np.stack(inputs[2 * n : 2 * n + 2], place) for n in range(4)]
    mapped = jax.vmap(partial(all_of, variants), place, **of)
    function = jax.jit(way(mapped, mesh_of(4), (Spec("x"),), Spec("x")))
    return function, np.concatenate(batches), inputs


@pytest.mark.long
@pytest.mark.parametrize("places", [(0, 0, 0), (2, 1, -1), (3, 2, 0)], ids=str)
def test_over_names_of_vmap(subtests: pytest.Subtests, places: tuple[int, ...]) -> None:
    """Two axes that vmap names, at these places of the argument and of all results."""
    given_i, given_j, end = places
    sizes = {"i": 2, "j": 4}
    inputs = ranks_of(8, PART)
    rows = [np.stack(inputs[4 * n : 4 * n + 4], given_j) for n in range(2)]
    variants = variants_of(sizes)
    inner = jax.vmap(partial(all_of, variants), given_j, end, axis_name="j")
    results = jax.jit(jax.vmap(inner, given_i, end, axis_name="i"))(np.stack(rows, given_i))
    by_rank = {
        key: [part for row in np.moveaxis(value, end, 0) for part in np.moveaxis(row, end, 0)]
        for key, value in jax.device_get(results).items()
    }
    check(by_rank, variants, inputs, sizes, subtests)


def test_of_what_all_share(subtests: pytest.Subtests) -> None:
    """Of an argument that vmap does not map: each element of the batch has all of it."""
    sizes, value = {"b": 4}, ranks_of(1, PART)[0]
    named = over_one("b", 4) | scattered("b", 4)
    variants: Variants = {
        (("b",), name): variant for name, variant in named.items() if "all_to_all" not in name
    }
    mapped = jax.vmap(partial(all_of, variants), None, axis_name="b", axis_size=4)
    check(jax.jit(mapped)(value), variants, [value] * 4, sizes, subtests)


@pytest.mark.long
@pytest.mark.parametrize("place", [0, 1, 2])
def test_beside_devices(subtests: pytest.Subtests, place: int) -> None:
    """On each device a batch of two: over devices, over the batch, and over both."""
    sizes = {"x": 4, "b": 2}
    variants = variants_of(sizes)
    function, whole, inputs = on_batches(variants, place, jitted, axis_name="b")
    check(function(whole), variants, inputs, sizes, subtests)


@pytest.mark.long
@pytest.mark.parametrize("place", [0, 1, 2])
def test_batched(subtests: pytest.Subtests, place: int) -> None:
    """A batch without a name in shard_map with its check, and what comes back for its argument."""
    named = over_one("x", 4) | (scattered("x", 4) if place == 0 else {})
    if hasattr(lax, "all_gather_invariant"):
        for axis, tiled in itertools.product(range(2), (False, True)):
            named[f"invariant {axis} {tiled}"] = (
                partial(lax.all_gather_invariant, axis_name="x", axis=axis, tiled=tiled),
                partial(_gathered, axis, tiled),
            )
    variants: Variants = {(("x",), name): variant for name, variant in named.items()}
    function, whole, inputs = on_batches(variants, place, checked)
    results = function(whole)
    check(results, variants, inputs, {"x": 4, "b": 2}, subtests)
    not_linear = {"pmax", "pmin", "axis_index", *(f"all_to_all {way} stacked" for way in TURNS)}
    linear = {key: v for key, v in variants.items() if key[1] not in not_linear}
    _, back = jax.vjp(on_batches(linear, place, checked)[0], whole)
    random, total = np.random.default_rng(1), 0.0
    given = {}
    for key in map(str, linear):
        result = np.asarray(results[key])
        given[key] = random.integers(-9, 9, result.shape).astype(np.float32)
        total += float((given[key] * result).sum())
    with subtests.test("what comes back is the transposed sum"):
        (gradient,) = back(given)
        np.testing.assert_allclose((np.asarray(gradient) * whole).sum(), total, rtol=1e-5)


def test_scatter_of_a_later_dimension(subtests: pytest.Subtests) -> None:
    """The batch is behind the dimension that the sum's result no longer has."""
    variants: Variants = {(("x",), name): variant for name, variant in scattered("x", 4).items()}
    function, whole, inputs = on_batches(variants, 2, jitted)
    check(function(whole), variants, inputs, {"x": 4, "b": 2}, subtests)


def test_exchange_of_what_all_share() -> None:
    """Each element of the batch gets its own slice of the same argument, as often as there are."""
    x = np.arange(8.0, dtype=np.float32).reshape(4, 2)
    mapped = jax.vmap(
        lambda v: lax.all_to_all(v, "i", 0, 0, tiled=True), None, axis_name="i", axis_size=2
    )
    expected = np.stack([np.concatenate([half, half]) for half in (x[:2], x[2:])])
    np.testing.assert_array_equal(mapped(x), expected)


@pytest.mark.skipif(not hasattr(lax, "pbroadcast"), reason="this release of JAX has none")
@pytest.mark.parametrize("place", range(3))
def test_copy_of_one_element(place: int) -> None:
    """Every element of the batch gets what the second one has, along any dimension."""
    x = np.arange(24.0, dtype=np.float32).reshape(2, 3, 4)
    copied = jax.vmap(lambda v: lax.pbroadcast(v, "i", 1), place, place, axis_name="i")
    expected = np.broadcast_to(x.take([1], place), x.shape)
    np.testing.assert_array_equal(copied(jax.device_put(x)), expected)


@pytest.mark.upstream("jax-ml/jax#15982")
@pytest.mark.parametrize("way", TURNS)
def test_gradient_of_a_stacked_exchange(way: str) -> None:
    """The gradient of half the square of what is exchanged is the argument."""
    program, _ = over_one("x", 4)[f"all_to_all {way} stacked"]
    value = np.concatenate(ranks_of(4, (4, 4)))
    function = jitted(program, mesh_of(4), (Spec("x"),), Spec("x"))
    result, back = jax.vjp(function, value)
    np.testing.assert_array_equal(back(result)[0], value)


def test_permutation_over_two_names() -> None:
    """Ranks count over both axes, and those that nobody sends to have zeros."""
    x = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    pairs = [(0, 1), (1, 0)]
    mapped = jax.vmap(
        jax.vmap(lambda v: lax.ppermute(v, ("i", "j"), pairs), axis_name="j"), axis_name="i"
    )
    np.testing.assert_array_equal(mapped(x), [[1, 0, 0], [0, 0, 0]])


def test_name_of_vmap_in_a_check() -> None:
    """A sum over the batch in shard_map, which checks what devices share by default."""
    variants: Variants = {(("b",), "psum"): (lambda x: lax.psum(x, "b"), partial(_reduced, "sum"))}
    function, whole, inputs = on_batches(variants, 0, checked, axis_name="b")
    expected = oracle.all_reduce(inputs, "sum", [(n, n + 1) for n in range(0, 8, 2)])
    np.testing.assert_array_equal(function(whole)[str((("b",), "psum"))], expected)


@pytest.mark.lanes("virtual-tpu")  # XLA's CPU client has no ragged all-to-all
@pytest.mark.skipif(jax.__version_info__ < (0, 7, 1), reason="JAX before 0.7.1 has no rule for it")
@pytest.mark.parametrize("least", [1, 0])
def test_ragged_batches(subtests: pytest.Subtests, least: int) -> None:
    """Two exchanges of as many rows as each one's sizes say, and what comes back for arguments."""
    batch, total, rows = 2, 4, 16
    random = np.random.default_rng(3)
    sizes = random.integers(least, 5, (batch, total, total)).astype(np.int32)
    starts = np.cumsum(sizes, 2, dtype=np.int32) - sizes
    places = np.cumsum(sizes, 1, dtype=np.int32) - sizes
    x = random.integers(-9, 9, (total, batch, rows, 2)).astype(np.float32)
    out = random.integers(-9, 9, x.shape).astype(np.float32)
    expected = out.copy()
    for (b, source, target), size in np.ndenumerate(sizes):
        start, place = starts[b, source, target], places[b, source, target]
        expected[target, b, place : place + size] = x[source, b, start : start + size]

    def exchange_rows(x: Any, out: Any, *indices: Any) -> Any:
        return lax.ragged_all_to_all(x, out, *indices, axis_name="x")

    def program(x: Any, out: Any) -> Any:
        own = lax.axis_index("x")
        sent = [jax.numpy.asarray(of)[:, own] for of in (starts, sizes, places)]
        received = jax.numpy.asarray(sizes)[:, :, own]
        return jax.vmap(exchange_rows)(x[0], out[0], *sent, received)[None]

    function = jitted(program, mesh_of(total), (Spec("x"), Spec("x")), Spec("x"))
    result, back = jax.vjp(function, x, out)
    with subtests.test("numbers"):
        np.testing.assert_array_equal(result, expected)
    with subtests.test("gradient"):
        given = random.integers(-9, 9, x.shape).astype(np.float32)
        of_x, of_out = map(np.asarray, back(given))
        assert (of_x * x).sum() + (of_out * out).sum() == (given * expected).sum()
