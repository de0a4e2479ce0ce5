"""JAX's collectives over dimensions by number, over groups of any size, and of constants."""

from __future__ import annotations

import re
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax

from suites.shared.global_arrays import Spec, mesh_of
from suites.shared.jax_releases import jitted, since_0_5

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("8"),
    pytest.mark.upstream("jax-ml/jax#19720"),
    since_0_5,
]
X = (np.arange(24).reshape(2, 3, 4) * 37 % 11 - 4).astype(np.float32)
PAIR = X, X[:, :, ::-1] + 1


def test_dimensions_by_number(subtests: pytest.Subtests) -> None:
    """A reduction over a dimension, over several, and over those beside a name."""

    def of_all(x: Any) -> dict[str, Any]:
        def row(part: Any) -> dict[str, Any]:
            return {
                "sum": lax.psum(part, (0, "i")),
                "sum of a dimension": lax.psum(part, 0),
                "last": lax.pmax(part, (1,)),
                "least": lax.pmin(part, ("i", 0)),
                "trees": lax.psum(PAIR[0][0] * part, ("i", 1)),
            }

        square = jax.grad(lambda v: (lax.psum(v, (1, 2)) ** 2).sum())
        both = jax.grad(
            lambda v: jax.vmap(lambda r: lax.psum(r**2, (0, "i")), axis_name="i")(v).sum()
        )
        return {
            "one": lax.psum(x, 1),
            "two": lax.psum(x, (0, 2)),
            "several": lax.psum((x, x * 2), 0),
            "largest": lax.pmax(x, (0, 1)),
            "rows": jax.vmap(row, axis_name="i")(x),
            "gradient": square(x),
            "gradient of both": both(x),
        }

    got = jax.jit(of_all)(X)
    rows = {
        "sum": np.stack([X.sum((0, 1))] * 2),
        "sum of a dimension": X.sum(1),
        "last": X.max(2),
        "least": np.stack([X.min((0, 1))] * 2),
        "trees": np.stack([(X[0] * X).sum((0, 2))] * 2),
    }
    expected: dict[str, Any] = {
        "one": X.sum(1),
        "two": X.sum((0, 2)),
        "several": (X.sum(0), 2 * X.sum(0)),
        "largest": X.max((0, 1)),
        "rows": rows,
        "gradient": np.broadcast_to(2 * X.sum((1, 2), keepdims=True), X.shape),
        "gradient of both": 4 * X,
    }
    for (path, value), own in zip(
        jax.tree_util.tree_flatten_with_path(got)[0], jax.tree.leaves(expected), strict=True
    ):
        with subtests.test(what=jax.tree_util.keystr(path)):
            np.testing.assert_allclose(value, own, rtol=1e-5)
    with subtests.test("groups"), pytest.raises(ValueError, match="named"):
        lax.psum(X, 0, axis_index_groups=[[0, 1]])


def test_constants(subtests: pytest.Subtests) -> None:
    """What is no part of a program is summed before there is one; no axis changes nothing."""
    pairs = [[0, 2], [1, 3]]

    def of_all(x: Any) -> dict[str, Any]:
        return {
            "one": lax.psum(1, "i"),
            "number": lax.psum(2.5, ("i", "j")),
            "array": lax.psum(X[0, 0], "j"),
            "truth": lax.psum(True, "i"),
            "groups": lax.psum(3, "j", axis_index_groups=pairs),
            "mean": lax.pmean(4.0, "j"),
            "no axis": lax.psum(x, ()),
            "booleans": lax.psum(x > 2, "i"),
        }

    results = {
        "one": 2,
        "number": 20.0,
        "array": 4 * X[0, 0],
        "truth": 2,
        "groups": 6,
        "mean": 4.0,
    }
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    got = jax.jit(jax.vmap(jax.vmap(of_all, axis_name="j"), axis_name="i"))(x)
    for name, value in results.items():
        with subtests.test(what=name):
            own = np.broadcast_to(value, (2, 4, *np.shape(value)))
            np.testing.assert_array_equal(got[name], own)
            assert got[name].dtype.kind == own.dtype.kind
    np.testing.assert_array_equal(got["no axis"], x)
    np.testing.assert_array_equal(got["booleans"], np.stack([(x > 2).sum(0)] * 2))


def test_groups_of_other_sizes(subtests: pytest.Subtests) -> None:
    """GPUs reduce in groups of several sizes, which a TPU refuses; a device is in one group."""
    groups = [[0, 5, 2], [3, 4], [7, 1, 6]]
    alike = [[0, 5, 2, 3], [4, 7, 1, 6]]
    x = np.arange(16, dtype=np.float32).reshape(8, 2) * 3 % 7

    def mapped(groups: Any) -> Any:
        def of_all(part: Any) -> list[Any]:
            operations = lax.psum, lax.pmax, lax.pmin
            return [operation(part, "i", axis_index_groups=groups) for operation in operations]

        return jax.pmap(of_all, axis_name="i")

    written = hasattr(mapped(alike), "trace")  # pmap of JAX 0.8 on lowers for one platform alone
    for given, rows in (
        () if not written else ((groups, "[[0, 5, 2], [3, 4, -1], [7, 1, 6]]"), (alike, str(alike)))
    ):
        lowered = mapped(given).trace(x).lower(lowering_platforms=("cuda",))
        with subtests.test("written", groups=rows):
            pattern = r"replica_groups = dense<(\[\[.*?\]\])>"
            assert re.findall(pattern, lowered.as_text()) == [rows] * 3
    with subtests.test("on a TPU"), pytest.raises(ValueError, match="same size"):
        mapped(groups).lower(x)
    got = mapped(alike)(x)
    reducers: tuple[Any, ...] = (np.sum, np.max, np.min)
    for result, reducer in zip(got, reducers, strict=True):
        own = np.empty_like(x)
        for group in alike:
            own[group] = reducer(x[group], axis=0)
        with subtests.test(what=reducer.__name__):
            np.testing.assert_array_equal(result, own)
    with subtests.test("in two groups"), pytest.raises(ValueError):
        mapped([[0, 1, 2, 3], [3, 4, 5, 6]]).lower(x)


def lowered_for_gpus(fn: Any) -> str:
    """Return the program of a function of each device's two numbers."""
    program: Any = jitted(fn, mesh_of(8), (Spec("x"),), Spec("x"))
    x = np.arange(16, dtype=np.float32)
    return str(program.trace(x).lower(lowering_platforms=("cuda",)).as_text())


has_broadcast = pytest.mark.skipif(
    not hasattr(lax, "pbroadcast"), reason="this release of JAX has no broadcast"
)


@has_broadcast
def test_broadcast_on_gpus() -> None:
    """GPUs are told who has the value, which comes first."""
    written = lowered_for_gpus(lambda value: lax.pbroadcast(value, "x", 3))
    assert "collective_broadcast" in written
    assert "replica_groups = dense<[[3, 0, 1, 2, 4, 5, 6, 7]]>" in written
    assert re.search(r"channel_handle<handle = \d+, type = 1>", written)


@has_broadcast
@pytest.mark.parametrize("place", [0, slice(None)], ids=["number", "array"])
def test_gradient_of_a_broadcast_on_gpus(place: Any) -> None:
    """It is the sum of all, for the one that had the value, and 0 for the others."""

    def back(value: Any) -> Any:
        _, transposed = jax.vjp(lambda v: lax.pbroadcast(v, "x", 3), value[place])
        return value * 0 + transposed(value[place])[0]

    written = lowered_for_gpus(back)
    assert "stablehlo.all_reduce" in written
    assert "stablehlo.select" in written
    assert re.search(r"compare\s+EQ", written)
    assert "dense<3> : tensor<i32>" in written


def test_swapped_axes() -> None:
    """An axis of devices becomes a dimension and that one the axis."""
    x = np.arange(4 * 3 * 4, dtype=np.float32).reshape(4, 3, 4)
    mapped = jax.jit(jax.vmap(lambda part: lax.pswapaxes(part, "i", 1), axis_name="i"))
    np.testing.assert_array_equal(mapped(x), x.swapaxes(0, 2))
