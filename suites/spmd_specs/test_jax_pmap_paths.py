"""pmap where another part of JAX carries it out: shard_map, vmap of operations, and checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from suites.shared.jax_releases import since_0_5, until_0_8

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("4"),
    pytest.mark.upstream("jax-ml/jax#1703"),
    since_0_5,
    until_0_8,
]
needs_merge = pytest.mark.skipif(
    not hasattr(jax.config, "jax_pmap_shmap_merge"), reason="this release of JAX has one pmap"
)
VALUE = (np.arange(32).reshape(4, 8) * 29 % 31 - 9).astype(np.float32)


@contextmanager
def as_shard_map() -> Iterator[None]:
    """Let pmap be shard_map, which JAX 0.7 has as a choice."""
    jax.config.update("jax_pmap_shmap_merge", True)
    try:
        yield
    finally:
        jax.config.update("jax_pmap_shmap_merge", False)


@pytest.mark.long
@needs_merge
@pytest.mark.skipif(jax.__version_info__ < (0, 7), reason="it is not complete before JAX 0.7")
def test_as_shard_map(subtests: pytest.Subtests) -> None:
    devices = jax.devices()
    columns = VALUE.reshape(8, 4)
    with as_shard_map():
        cases: dict[str, tuple[Callable[[], Any], Any]] = {
            "rows": (lambda: jax.pmap(lambda v: v * 2 - v[0])(VALUE), VALUE * 2 - VALUE[:, :1]),
            "columns": (
                lambda: jax.pmap(lambda v: v.cumsum(), in_axes=1, out_axes=1)(columns),
                columns.cumsum(0),
            ),
            "shared": (
                lambda: jax.pmap(lambda v, w: v * w, in_axes=(0, None))(VALUE, VALUE[0]),
                VALUE * VALUE[0],
            ),
            "sum": (
                lambda: jax.pmap(lambda v: lax.psum(v, "i"), "i", out_axes=None)(VALUE),
                VALUE.sum(0),
            ),
            "place": (
                lambda: jax.pmap(lambda v: v[0] * lax.axis_index("i"), "i")(VALUE),
                VALUE[:, 0] * np.arange(4),
            ),
            "static": (
                lambda: jax.pmap(lambda v, n: v * n, static_broadcasted_argnums=1)(VALUE, 3),
                VALUE * 3,
            ),
            "some": (
                lambda: jax.pmap(lambda v: v + 1, devices=devices[2:])(VALUE[:2]),
                VALUE[:2] + 1,
            ),
            "fewer": (lambda: jax.pmap(jnp.negative)(VALUE[:3]), -VALUE[:3]),
            "backend": (lambda: jax.pmap(jnp.negative, backend="tpu")(VALUE), -VALUE),
            "gradient": (
                lambda: jax.grad(lambda v: jax.pmap(lambda u: (u**2).sum())(v).sum())(VALUE),
                2 * VALUE,
            ),
        }
        for name, (operation, expected) in cases.items():
            with subtests.test(name=name):
                np.testing.assert_allclose(operation(), expected)
        with subtests.test("a tree"):
            got = jax.pmap(lambda t, *, w: {"a": t["b"] + w}, out_axes={"a": 1})(
                {"b": VALUE}, w=VALUE
            )
            np.testing.assert_array_equal(got["a"], (2 * VALUE).T)
        with subtests.test("devices"):
            result = jax.pmap(lambda v: v, devices=devices[::-1])(VALUE)
            assert {s.device: s.index[0].start or 0 for s in result.addressable_shards} == {
                device: 3 - number for number, device in enumerate(devices)
            }
        with subtests.test("donated"):
            given = jax.pmap(lambda v: v)(VALUE)
            np.testing.assert_array_equal(
                jax.pmap(lambda v: v + 1, donate_argnums=0)(given), VALUE + 1
            )
            assert given.is_deleted()


@pytest.mark.long
def test_nested(subtests: pytest.Subtests) -> None:
    """Over each dimension, compiled and operation by operation, as vmap has it."""
    value = VALUE.reshape(2, 2, 8)

    def program(v: Any) -> Any:
        outer = lax.axis_index("i")
        return v * 2 + lax.axis_index("j") + 10 * outer, jnp.float32(3), outer * 2

    for given, result in (((0, 0), (0, 0)), ((0, 1), (1, 0)), ((1, 0), (0, 1)), ((2, 1), (1, 1))):
        places = list(range(3))
        outer = places.pop(given[0])
        inner = places.pop(given[1])
        x = np.transpose(value, np.argsort([outer, inner, *places]))
        by_rank = value * 2 + np.arange(2)[:, None] + 10 * np.arange(2)[:, None, None]
        expected = np.stack([np.stack(list(row), result[1]) for row in by_rank], result[0])
        for compiled in (True, False) if result[1] == 0 else (False,):
            with subtests.test(given=given, result=result, compiled=compiled):
                with jax.disable_jit(not compiled):
                    row = jax.pmap(program, "j", in_axes=given[1], out_axes=(result[1], 0, 0))
                    rows = jax.pmap(row, "i", in_axes=given[0], out_axes=(result[0], 0, 0))
                    got, constant, place = rows(x)
                np.testing.assert_array_equal(got, expected)
                np.testing.assert_array_equal(constant, np.full((2, 2), 3))
                np.testing.assert_array_equal(place, [[0, 0], [2, 2]])


def test_maps_within_maps_without_jit(subtests: pytest.Subtests) -> None:
    """One that is compiled, which has no devices of its own, and one that shares an argument."""
    value = VALUE.reshape(2, 2, 8)

    def program(v: Any) -> Any:
        return v * 10 + lax.axis_index("j") - lax.axis_index("i")

    def inner(v: Any, devices: Any = None) -> Any:
        with jax.disable_jit(False):
            return jax.pmap(program, "j", devices=devices)(v)

    expected = value * 10 + np.arange(2)[:, None] - np.arange(2)[:, None, None]
    with jax.disable_jit():
        np.testing.assert_array_equal(jax.pmap(inner, "i")(value), expected)
        shared = jax.pmap(lambda u, w: (u, w), "j", in_axes=(0, None))
        with subtests.test("what the inner one does not divide"):
            _, columns = jax.pmap(shared, "i", in_axes=(0, 1))(value, VALUE[:2].T)
            np.testing.assert_array_equal(columns, np.stack([VALUE[:2]] * 2, 1))
        with subtests.test("devices"), pytest.raises(ValueError, match="explicit devices"):
            jax.pmap(lambda v: inner(v, jax.devices()[:2]), "i")(value)


def test_each_part_without_its_dimension(subtests: pytest.Subtests) -> None:
    """JAX has an option for programs that take parts of a lower rank, as before 0.5."""
    if not hasattr(jax.config, "jax_pmap_no_rank_reduction"):
        pytest.skip("this release of JAX has no choice")
    columns = VALUE.reshape(8, 4)
    jax.config.update("jax_pmap_no_rank_reduction", False)
    cases: dict[str, tuple[Any, Any]] = {
        "rows": (jax.pmap(lambda v: v - lax.psum(v, "i"), "i")(VALUE), VALUE - VALUE.sum(0)),
        "columns": (
            jax.pmap(lambda v, w: v * w, in_axes=(1, None), out_axes=1)(columns, columns[:, 0]),
            columns * columns[:, :1],
        ),
        "to rows": (jax.pmap(lambda v: v.cumsum(), in_axes=1)(columns), columns.cumsum(0).T),
        "shared": (
            jax.pmap(lambda v: (lax.psum(v, "i"), v), "i", out_axes=(None, 0))(VALUE)[0],
            VALUE.sum(0),
        ),
    }
    for name, (got, expected) in cases.items():
        with subtests.test(name=name):
            np.testing.assert_array_equal(got, expected)
    got, expected = cases["columns"]
    for shard in got.addressable_shards:
        own = np.take(expected, shard.device.id, 1)
        np.testing.assert_array_equal(np.squeeze(shard.data), own)


@pytest.mark.parametrize("whole_rank", [True, False])
def test_rows_stay_where_they_were_computed(whole_rank: bool, subtests: pytest.Subtests) -> None:
    """A row of a map's result is taken without a copy, and goes where others of a sum are."""
    if not hasattr(jax.config, "jax_pmap_no_rank_reduction"):
        pytest.skip("this release of JAX has no choice")
    jax.config.update("jax_pmap_no_rank_reduction", whole_rank)
    array, device = jax.pmap(lambda row: row * 2)(jnp.asarray(VALUE)), jax.devices()[2]
    indices: list[Any] = [2, (2,), (2, slice(None))]
    indices += [slice(2, 3), (slice(2, 3), slice(None))] if whole_rank else []
    for index in indices:
        with subtests.test(index=str(index)):
            row = array[index]
            assert row.devices() == {device}
            np.testing.assert_array_equal(row, 2 * VALUE[index])
            both = row + jax.device_put(np.ones(8, np.float32), jax.devices()[1])
            assert both.devices() == {jax.devices()[1]}
            np.testing.assert_array_equal(both, 2 * VALUE[index] + 1)
    for row, own in zip(array, jax.devices(), strict=True):
        assert row.devices() == {own}


def test_functions_with_rules_of_their_own(subtests: pytest.Subtests) -> None:
    """Operation by operation a function's own derivative is not used."""

    @jax.custom_vjp
    def doubled(v: Any) -> Any:
        return v * 2

    doubled.defvjp(lambda v: (v * 2, v), lambda v, ct: (ct * 5,))

    @jax.custom_jvp
    def tripled(v: Any) -> Any:
        return v * 3

    tripled.defjvp(lambda primals, tangents: (primals[0] * 3, tangents[0] * 7))
    for fn, factor in ((doubled, 2), (tripled, 3)):
        with subtests.test(factor=factor), jax.disable_jit():
            np.testing.assert_array_equal(jax.pmap(fn)(VALUE), VALUE * factor)


def test_checkpoints(subtests: pytest.Subtests) -> None:
    """What a checkpoint keeps of a map, and what it computes again, with weights for all."""
    w = np.arange(8, dtype=np.float32) / 8

    def total(v: Any, w: Any, n: Any) -> Any:
        sines = jax.pmap(lambda u, w: (jnp.sin(u) * w, u), in_axes=(0, None), out_axes=(1, 0))
        sines(v * 3, w)  # what nobody uses is not computed again
        scaled, _ = sines(v, w)
        return jnp.cos(scaled.sum()) * n

    inner = np.sin(VALUE) * w
    slope = -np.sin(inner.sum()) * 2
    expected = slope * np.cos(VALUE) * w, slope * np.sin(VALUE).sum(0), np.cos(inner.sum())
    policies = jax.checkpoint_policies
    for name in ("everything_saveable", "nothing_saveable", "dots_saveable"):
        with subtests.test(name=name):
            kept = jax.checkpoint(total, policy=getattr(policies, name))
            gradients = jax.grad(kept, (0, 1, 2))(VALUE, w, np.float32(2))
            for got, own in zip(gradients, expected, strict=True):
                np.testing.assert_allclose(got, own, rtol=1e-3, atol=1e-3)
