"""Operations on references that JAX's interpreter computes on any platform: atomics and masks."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

from suites.multislice_flash_attention.plain_kernels import floats
from suites.shared.jax_releases import needs_tpu_interpret_mode

gpu = pytest.importorskip("jax.experimental.pallas.triton")
pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("1"),
    pytest.mark.upstream("jax-ml/jax#29406"),
    needs_tpu_interpret_mode,
]
F32 = np.float32
X, Y = floats(4, 8), floats(4, 8, seed=1)
LIKE = jax.ShapeDtypeStruct((4, 8), F32)
ROWS, COLUMNS = np.array([3, 0, 3]), np.array([1, 5, 7])


def interpreted(kernel: Callable[..., Any], *operands: Any, results: Any = LIKE) -> list[Any]:
    """Return what an interpreted kernel computes."""
    fn = pl.pallas_call(kernel, results, interpret=True)
    return [np.asarray(leaf) for leaf in jax.tree.leaves(jax.jit(fn)(*operands))]


def test_atomics(subtests: pytest.Subtests) -> None:
    """Each writes what it computes of the old value and the new one, and returns the old one."""
    operations = {"add": np.add, "max": np.maximum, "min": np.minimum}
    places: dict[str, Any] = {
        "slices": (slice(1, 3), slice(2, 8)),
        "a row": (2, slice(0, 8)),
        "one": (1, 3),
    }
    names = [(operation, place) for operation in operations for place in places]

    def kernel(numbers: Any, x: Any, y: Any, *out: Any) -> None:
        for (operation, place), written, before in zip(names, out[::2], out[1::2], strict=True):
            written[...] = x[...]
            at = tuple(
                pl.ds(index.start, index.stop - index.start)
                if isinstance(index, slice)
                else numbers[index]
                for index in places[place]
            )
            fn = getattr(gpu, f"atomic_{operation}")
            before[...] = fn(written, at, y[places[place]])

    results = [
        jax.ShapeDtypeStruct(array.shape, F32)
        for _, place in names
        for array in (X, X[places[place]])
    ]
    got = interpreted(kernel, np.arange(4, dtype=np.int32), X, Y, results=results)
    for (operation, place), written, before in zip(names, got[::2], got[1::2], strict=True):
        expected = X.copy()
        expected[places[place]] = operations[operation](X[places[place]], Y[places[place]])
        with subtests.test(operation=operation, place=place):
            np.testing.assert_array_equal(written, expected)
            np.testing.assert_array_equal(before, X[places[place]])


def test_compared_and_exchanged() -> None:
    """The new number is written only where the old one was expected."""
    number = jax.ShapeDtypeStruct((), np.int32)

    def kernel(x: Any, first: Any, before: Any, second: Any, last: Any) -> None:
        first[...], second[...] = x[...], x[...]
        before[...] = gpu.atomic_cas(first, 7, 9)
        last[...] = gpu.atomic_cas(second, 8, 9)

    got = interpreted(kernel, np.int32(7), results=[number] * 4)
    assert [int(value) for value in got] == [9, 7, 7, 7]


def test_wrong_atomics_are_refused(subtests: pytest.Subtests) -> None:
    jax.devices()
    for operation in ("add", "max", "xor"):
        for dtype in (np.int8, np.int16, bool):
            x = jax.ShapeDtypeStruct((8,), dtype)
            fn = pl.pallas_call(
                lambda x, out, of=operation: operator.setitem(
                    out, ..., getattr(gpu, f"atomic_{of}")(x, slice(None), x[...])
                ),
                x,
                interpret=True,
            )
            with (
                subtests.test(operation=operation, dtype=np.dtype(dtype).name),
                pytest.raises(ValueError),
            ):
                jax.make_jaxpr(fn)(x)
    half = jax.ShapeDtypeStruct((8,), np.float16)
    for operation in ("add", "max"):
        fn = pl.pallas_call(
            lambda x, out, of=operation: operator.setitem(
                out, ..., getattr(gpu, f"atomic_{of}")(x, slice(None), x[...])
            ),
            half,
            interpret=True,
        )
        with subtests.test(operation=operation, dtype="float16"):
            if operation == "add":
                assert "atomic_rmw" in str(jax.make_jaxpr(fn)(half))
                continue
            with pytest.raises(ValueError):
                jax.make_jaxpr(fn)(half)


@pytest.mark.skipif(not hasattr(pl, "swap"), reason="this release of JAX has no pl.swap")
def test_places_by_arrays(subtests: pytest.Subtests) -> None:
    """Reads and writes of elements anywhere, where a mask allows them."""
    mask = np.array([True, False, True])

    def kernel(x: Any, y: Any, m: Any, i: Any, j: Any, *out: Any) -> None:
        read, masked, rest, written, before = out
        at = (i[...], j[...])
        read[...] = x[at]
        masked[...] = gpu.load(x.at[at], mask=m[...], other=y[at])
        rest[...] = gpu.load(x.at[1:3, :4], mask=x[1:3, :4] > 0, other=0.0)
        written[...] = x[...]
        before[...] = pl.swap(written, at, y[at] * 2, mask=m[...])
        gpu.store(written.at[0:2, 0:1], y[0:2, 0:1], mask=x[0:2, 0:1] < 9)

    few, part = jax.ShapeDtypeStruct((3,), F32), jax.ShapeDtypeStruct((2, 4), F32)
    got = interpreted(kernel, X, Y, mask, ROWS, COLUMNS, results=[few, few, part, LIKE, few])
    here, other = X[ROWS, COLUMNS], Y[ROWS, COLUMNS]
    written = X.copy()
    written[ROWS[mask], COLUMNS[mask]] = 2 * other[mask]
    written[0:2, 0:1] = Y[0:2, 0:1]
    positive = X[1:3, :4]
    expected = [
        here,
        np.where(mask, here, other),
        np.where(positive > 0, positive, 0),
        written,
        np.where(mask, here, got[4]),
    ]
    for number, oracle in enumerate(expected):
        with subtests.test(result=number):
            np.testing.assert_array_equal(got[number], oracle)


@pytest.mark.skipif(
    not hasattr(pl, "max_contiguous"), reason="this release of JAX has no pl.max_contiguous"
)
def test_hints_change_nothing() -> None:
    """What is known of a number is for the compiler; products and quotients have their type."""

    def kernel(x: Any, y: Any, out: Any, product: Any, quotient: Any) -> None:
        first = pl.multiple_of(pl.max_contiguous(jnp.int32(2), 2), 2)
        out[...] = x[...] + first
        product[...] = pl.dot(x[...], y[...], trans_b=True, allow_tf32=False)
        quotient[...] = pl.reciprocal(y[...], approx=True)

    square = jax.ShapeDtypeStruct((4, 4), F32)
    out, product, quotient = interpreted(kernel, X, Y, results=[LIKE, square, LIKE])
    np.testing.assert_array_equal(out, X + 2)
    np.testing.assert_allclose(product, X @ Y.T, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(quotient, 1 / Y, rtol=1e-2)
    whole = jax.ShapeDtypeStruct((8, 8), np.int32)
    numbers = np.arange(32, dtype=np.int8).reshape(4, 8)
    (product,) = interpreted(
        lambda x, y, out: operator.setitem(out, ..., pl.dot(x[...], y[...], trans_a=True)),
        numbers,
        numbers,
        results=whole,
    )
    np.testing.assert_array_equal(product, numbers.T.astype(np.int32) @ numbers)
    for wrong in ({"allow_tf32": True, "precision": "highest"},):
        with pytest.raises(ValueError, match="Only one"):
            pl.dot(jnp.ones((2, 2)), jnp.ones((2, 2)), **wrong)
    with pytest.raises(ValueError, match="2D"):
        pl.dot(jnp.ones(2), jnp.ones((2, 2)))


@pytest.mark.parametrize("mapped", [False, True], ids=["plain", "mapped"])
def test_prints(mapped: bool, capfd: pytest.CaptureFixture[str]) -> None:
    """With places for the values, or with the values behind the text; one line of each row."""

    def say(row: Any) -> Any:
        pl.debug_print("row {}", row)
        return row

    def kernel(x: Any, out: Any) -> None:
        if mapped:
            jax.vmap(say)(x[:, 0])
        else:
            pl.debug_print("one is {} and", x[0, 0])
            pl.debug_print("behind", x[1, 0])
            pl.debug_print("")
        out[...] = x[...]

    x = np.arange(32, dtype=np.int32).reshape(4, 8)
    interpreted(kernel, x, results=jax.ShapeDtypeStruct((4, 8), np.int32))
    jax.effects_barrier()
    lines = [line.strip() for line in capfd.readouterr().out.splitlines() if line.strip()]
    rows = sorted(f"row {8 * n}" for n in range(4))  # mapped ones come in any order
    assert (sorted(lines) if mapped else lines) == (
        rows if mapped else ["one is 0 and", "behind 8"]
    )
