"""Programs that ``xla-harness fuzz`` found, each of which some release of jaxlib's XLA gets wrong.

They run on lane cpu alone, since the virtual TPU has one XLA for all releases of jaxlib.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from suites.shared.global_arrays import mesh_of
from suites.spmd_specs.jax_layouts import partitioned_by

pytestmark = [pytest.mark.lanes("cpu"), pytest.mark.deadline(60)]


def _tokens_before(x: Any) -> Any:
    return jnp.pad(x, (1, 0))[:-1]


def _tokens_behind(x: Any) -> Any:
    return jnp.pad(x, (0, 1))[1:]


def _padded_before(x: Any) -> Any:
    return lax.pad(x, np.float32(0), [(1, -1, 0)])


def _padded_behind(x: Any) -> Any:
    return lax.pad(x, np.float32(0), [(-1, 1, 0)])


@pytest.mark.upstream("jax-ml/jax#18434")
@pytest.mark.topologies("2", "4")
@pytest.mark.parametrize(
    ("shift", "by"),
    [(_tokens_before, 1), (_tokens_behind, -1), (_padded_before, 1), (_padded_behind, -1)],
    ids=["jnp-right", "jnp-left", "lax-right", "lax-left"],
)
def test_tokens_move_by_one_into_parts(shift: Any, by: int) -> None:
    """Each token's neighbour, as a language model wants it: every device has all, then its part."""
    x = np.arange(1, 9, dtype=np.float32)
    mesh = Mesh(np.array(jax.devices()), "x")
    along, everywhere = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (["x"], []))
    moved = np.roll(x, by)
    moved[0 if by > 0 else -1] = 0
    result = jax.jit(shift, in_shardings=everywhere, out_shardings=along)(x)
    np.testing.assert_array_equal(result, moved)


@pytest.mark.upstream("jax-ml/jax#39301")
@pytest.mark.topologies("2", "4")
@pytest.mark.parametrize("elements", [1, 2, 3], ids=["one-each", "two-each", "three-each"])
def test_zeros_between_elements_of_a_divided_result(elements: int) -> None:
    """A zero after each element, as in the gradient of what takes every second row."""
    devices = jax.device_count()
    x = np.arange(1, devices * elements + 1, dtype=np.float32)
    mesh = Mesh(np.array(jax.devices()), "x")
    along, everywhere = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (["x"], []))

    def padded(x: Any) -> Any:
        return lax.pad(x, np.float32(0), [(0, 1, 1)])

    result = jax.jit(padded, in_shardings=everywhere, out_shardings=along)(x)
    np.testing.assert_array_equal(result, np.stack([x, 0 * x], 1).ravel())


@pytest.mark.upstream("jax-ml/jax#39301")
@pytest.mark.topologies("2")
def test_gradient_of_a_mean_over_windows() -> None:
    """Windows of two rows, one after the other, of which the first has only padding."""
    mesh, x = mesh_of(2), np.arange(2, dtype=np.float32)
    along = NamedSharding(mesh, PartitionSpec("x"))

    def total(x: Any) -> Any:
        sums = lax.reduce_window(x, np.float32(0), lax.add, (2,), (2,), [(2, 0)])
        return (lax.with_sharding_constraint(sums, along) * np.array([3, 5], np.float32)).sum()

    np.testing.assert_array_equal(jax.jit(jax.grad(total))(x), [5, 5])


@pytest.mark.upstream("openxla/xla#49122")
@pytest.mark.topologies("2")
def test_a_row_divided_over_more_devices() -> None:
    """Every third row, of which there is one, in parts that each device is to have one of."""
    mesh, x = mesh_of(2), np.arange(4, dtype=np.float32).reshape(2, 2)
    along, everywhere = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (["x"], []))

    def row(x: Any) -> Any:
        return lax.with_sharding_constraint(lax.slice(x, (1, 0), (2, 2), (3, 2)), along)

    np.testing.assert_array_equal(jax.jit(row, out_shardings=everywhere)(x), x[1::3, ::2])


@pytest.mark.upstream("jax-ml/jax#39301")
@pytest.mark.topologies("2")
def test_padding_of_a_column_divided_over_more_devices() -> None:
    """One column stays of two, and a row is added."""
    mesh, x = mesh_of(2), np.arange(4, dtype=np.float32).reshape(2, 2)
    along, everywhere = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ([None, "x"], []))

    def padded(x: Any) -> Any:
        longer = lax.pad(x, np.float32(0), [(0, 1, 0), (-1, 0, 0)])
        return lax.with_sharding_constraint(longer, along)

    result = jax.jit(padded, in_shardings=everywhere, out_shardings=everywhere)(x)
    np.testing.assert_array_equal(result, np.pad(x[:, 1:], [(0, 1), (0, 0)]))


@pytest.mark.upstream("openxla/xla#4340")
@pytest.mark.topologies("6")
@pytest.mark.parametrize("shape", [(3, 2), (2, 3)], ids=["3x2", "2x3"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["x", "y"], [None, ("x", "y")]),
        ([None, ("x", "y")], ["x", "y"]),
        (["x"], [None, ("x", "y")]),
        ([("x", "y")], [None, ("x", "y")]),
    ],
    ids=["both-to-columns", "columns-to-both", "rows-to-columns", "all-rows-to-columns"],
)
def test_reshard_over_six_devices(
    shape: tuple[int, int], before: Sequence[Any], after: Sequence[Any]
) -> None:
    """Parts that go to other devices of a mesh with an axis of three; nothing is computed."""
    mesh, x = mesh_of(*shape), np.arange(36, dtype=np.float32).reshape(6, 6)
    old, new = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (before, after))
    moved = jax.device_put(jax.device_put(x, old), new)
    np.testing.assert_array_equal(moved, x)
    again = jax.jit(jnp.negative, in_shardings=old, out_shardings=new)(x)
    np.testing.assert_array_equal(again, -x)


@pytest.mark.upstream("jax-ml/jax#20710")
@pytest.mark.topologies("2")
def test_gradient_of_a_scan_over_divided_rows() -> None:
    """The last row of a scan whose rows lie on different devices."""
    mesh, x = mesh_of(2), np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    along = NamedSharding(mesh, PartitionSpec("x"))

    def total(x: Any) -> Any:
        rows = lax.with_sharding_constraint(x, along)
        last, _ = lax.scan(lambda before, row: (row, before + row), jnp.zeros((2, 2)), rows)
        return (last * np.arange(4, dtype=np.float32).reshape(2, 2)).sum()

    expected = np.stack([np.zeros((2, 2)), np.arange(4).reshape(2, 2)])
    np.testing.assert_array_equal(jax.jit(jax.grad(total))(x), expected)


@pytest.mark.upstream("openxla/xla#49122")
@pytest.mark.topologies("4")
@pytest.mark.parametrize("rows", [4, 8])
def test_last_row_by_a_step(rows: int) -> None:
    """A step of three from the last row on leaves that row alone."""
    mesh, x = mesh_of(4), np.arange(rows, dtype=np.float32)
    along, everywhere = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (["x"], []))
    last = jax.jit(lambda x: x[rows - 1 :: 3], in_shardings=along, out_shardings=everywhere)
    np.testing.assert_array_equal(last(x), x[-1:])


@pytest.mark.upstream("openxla/xla#42481")
@pytest.mark.topologies("8")
def test_rows_added_to_fewer_rows_than_devices() -> None:
    """Both of two rows, which two axes of three are to divide by four, are added to the first."""
    mesh, x = mesh_of(2, 2, 2, names="xyz"), np.arange(1, 3, dtype=np.float32)
    along, everywhere = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ([("x", "y")], []))

    def added(x: Any, rows: Any) -> Any:
        divided = lax.with_sharding_constraint(x + x, along)
        return divided.at[rows].add(divided)

    result = jax.jit(added, out_shardings=everywhere)(x, np.zeros(2, np.int32))
    np.testing.assert_array_equal(result, [8, 4])


def _greatest_so_far(x: Any) -> Any:
    """Return the greatest numbers so far, which are computed together with their places."""

    def greater(a: Any, b: Any) -> Any:
        return tuple(jnp.where(a[0] >= b[0], own, other) for own, other in zip(a, b, strict=True))

    size = x.shape[0]
    pairs, starts = (x, jnp.arange(size, dtype=np.int32)), (np.float32(-np.inf), np.int32(0))
    return lax.reduce_window(pairs, starts, greater, (size,), (1,), [(size - 1, 0)])[0]


@pytest.mark.upstream("pytorch/xla#8610")
@pytest.mark.topologies("1")
@pytest.mark.parametrize("size", [16, 17])
def test_greatest_so_far_of_many(size: int) -> None:
    """XLA computes windows of more than sixteen elements in two steps."""
    x = np.arange(size, dtype=np.float32)[::-1].copy()
    np.testing.assert_array_equal(jax.jit(_greatest_so_far)(x), np.maximum.accumulate(x))


@pytest.mark.upstream("openxla/xla#4340")
@pytest.mark.topologies("4")
@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
def test_greatest_so_far_with_its_place(partitioner: str) -> None:
    """A window of two arrays, of which the first result alone is wanted, in parts."""
    mesh, x = mesh_of(4), np.array([3, 1, 4, 1], np.float32)
    along, everywhere = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (["x"], []))

    with partitioned_by(partitioner):
        result = jax.jit(_greatest_so_far, in_shardings=everywhere, out_shardings=along)(x)
    np.testing.assert_array_equal(result, np.maximum.accumulate(x))


@pytest.mark.upstream("openxla/xla#4340")
@pytest.mark.topologies("4")
@pytest.mark.parametrize("dtype", [np.int32, np.int64], ids=["int32", "int64"])
def test_greatest_of_rows_at_places(dtype: Any) -> None:
    """Three rows, divided over four devices, into one of them."""
    jax.config.update("jax_enable_x64", True)
    mesh, x = mesh_of(4), np.arange(3, dtype=np.float32)
    along, everywhere = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (["x"], []))

    def scattered(x: Any, places: Any) -> Any:
        rows = lax.with_sharding_constraint(x, along)
        return lax.scatter_max(
            rows, places[:, None], rows, lax.ScatterDimensionNumbers((), (0,), (0,))
        )

    result = jax.jit(scattered, out_shardings=everywhere)(x, np.zeros(3, dtype))
    np.testing.assert_array_equal(result, [2, 1, 2])


needs_free_axes = pytest.mark.skipif(not hasattr(jax, "shard_map"), reason="no jax.shard_map")


@needs_free_axes
@pytest.mark.upstream("openxla/xla#4340")
@pytest.mark.topologies("4")
@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
@pytest.mark.parametrize("exchange", ["all_gather", "all_to_all", "ppermute"])
def test_exchange_along_one_axis_of_two(exchange: str, partitioner: str) -> None:
    """The function has rows of the first axis; the compiler divides columns along the other one."""
    mesh, x = mesh_of(2, 2), np.arange(32, dtype=np.float32).reshape(8, 4)
    rows, columns = PartitionSpec("x"), PartitionSpec(None, "x")
    function, specs, expected = {
        "all_gather": (lambda p: lax.all_gather(p, "x", tiled=True), PartitionSpec(), x),
        "all_to_all": (lambda p: lax.all_to_all(p, "x", 1, 0, tiled=True), columns, x),
        "ppermute": (lambda p: lax.ppermute(p, "x", [(0, 1), (1, 0)]), rows, np.roll(x, 4, 0)),
    }[exchange]
    options = {"check_vma": False, "axis_names": {"x"}}
    mapped = jax.shard_map(function, mesh=mesh, in_specs=rows, out_specs=specs, **options)
    both = NamedSharding(mesh, PartitionSpec("x", "y"))
    with partitioned_by(partitioner):
        np.testing.assert_array_equal(jax.jit(mapped, in_shardings=both)(x), expected)


@needs_free_axes
@pytest.mark.upstream("openxla/xla#4340")
@pytest.mark.topologies("4")
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("reduction", [lax.psum, lax.pmax], ids=["psum", "pmax"])
def test_reduction_over_one_axis_of_two(reduction: Any, dtype: Any) -> None:
    """The CPU compiler gives an all-reduce of bfloat16 another type."""
    mesh, x = mesh_of(2, 2), np.arange(32).reshape(8, 4)
    mapped = jax.shard_map(
        lambda p: reduction(p, "x"),
        mesh=mesh,
        in_specs=PartitionSpec("x"),
        out_specs=PartitionSpec(),
        check_vma=False,
        axis_names={"x"},
    )
    result = jax.jit(mapped)(x.astype(dtype))
    expected = x[:4] + x[4:] if reduction is lax.psum else x[4:]
    np.testing.assert_array_equal(np.asarray(result, float), expected)
