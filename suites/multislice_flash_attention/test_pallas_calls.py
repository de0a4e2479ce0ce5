"""What ``pallas_call`` does around a kernel: blocks, index maps, vmap, aliases and gradients.

Each is asked of the kernel as it is lowered for a TPU, and of JAX's interpreter of all platforms.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from suites.multislice_flash_attention.mosaic_by_hand import ways
from suites.multislice_flash_attention.plain_kernels import BOTH, copy, floats
from suites.shared.jax_releases import needs_tpu_interpret_mode

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("1"),
    pytest.mark.upstream("pytorch/xla#8850"),
    pytest.mark.deadline(60),
    needs_tpu_interpret_mode,
]
F32 = np.float32


def like(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


@BOTH
def test_blocks_that_do_not_divide(interpret: bool, subtests: pytest.Subtests) -> None:
    """What lies past the end of an array is read as anything, and what is written there is lost."""
    x = floats(20, 300)

    def kernel(x: Any, doubled: Any, sums: Any) -> None:
        i, j = pl.program_id(0), pl.program_id(1)
        row = i * 8 + jax.lax.broadcasted_iota(np.int32, (8, 128), 0)
        column = j * 128 + jax.lax.broadcasted_iota(np.int32, (8, 128), 1)
        inside = (row < 20) & (column < 300)
        doubled[...] = x[...] * 2 + column
        total = jnp.where(inside, x[...], 0).sum(axis=0, keepdims=True)
        sums[...] = jnp.broadcast_to(total + 100 * i, sums.shape)

    block = pl.BlockSpec((8, 128), lambda i, j: (i, j))
    fn = pl.pallas_call(
        kernel,
        (like(x), jax.ShapeDtypeStruct((24, 384), F32)),
        grid=(pl.cdiv(20, 8), pl.cdiv(300, 128)),
        in_specs=[block],
        out_specs=[block, block],
        interpret=interpret,
        debug=True,
    )
    whole = np.pad(x, ((0, 4), (0, 84))).reshape(3, 8, 384).sum(axis=1, keepdims=True)
    whole = whole + 100 * np.arange(3)[:, None, None]
    for way, (doubled, sums) in ways(fn, x, interpret=interpret):
        with subtests.test(way, result="written"):
            np.testing.assert_allclose(doubled, x * 2 + np.arange(300), rtol=1e-6)
        with subtests.test(way, result="sums"):
            np.testing.assert_allclose(
                sums, np.broadcast_to(whole, (3, 8, 384)).reshape(24, 384), rtol=1e-4
            )
    line = floats(300)
    with subtests.test("one dimension"):
        spec = pl.BlockSpec((128,), lambda i: (i,))
        fn = pl.pallas_call(
            copy, like(line), grid=(3,), in_specs=[spec], out_specs=spec, interpret=interpret
        )
        np.testing.assert_array_equal(jax.jit(fn)(line), line)


X = floats(4, 16, 256)


def maps() -> dict[str, tuple[tuple[int, ...], pl.BlockSpec, Callable[..., np.ndarray]]]:
    """Return a grid, the block of X and its place in each step, and what the steps read."""
    return {
        "blocks": (
            (2, 2),
            pl.BlockSpec((4, 8, 128), lambda i, j: (0, i, j)),
            lambda i, j: X[:, 8 * i : 8 * i + 8, 128 * j : 128 * j + 128],
        ),
        "swapped": (
            (2, 2),
            pl.BlockSpec((4, 8, 128), lambda i, j: (0, j, i)),
            lambda i, j: X[:, 8 * j : 8 * j + 8, 128 * i : 128 * i + 128],
        ),
        "none": ((4,), pl.BlockSpec((None, 16, 256), lambda i: (i, 0, 0)), lambda i: X[i]),
        "squeezed": (
            (2, 2),
            pl.BlockSpec((pl.Squeezed(), 16, pl.Blocked(128)), lambda i, j: (i + 2, 0, j)),
            lambda i, j: X[i + 2, :, 128 * j : 128 * j + 128],
        ),
        "reversed": (
            (4,),
            pl.BlockSpec((1, 16, 256), lambda i: (3 - i, 0, 0)),
            lambda i: X[3 - i : 4 - i],
        ),
        "elements": (
            (3,),
            pl.BlockSpec(
                (pl.Element(2), pl.Element(8), pl.Element(128)), lambda i: (i, 8, 128 * (i % 2))
            ),
            lambda i: X[i : i + 2, 8:16, 128 * (i % 2) :][:, :, :128],
        ),
        "whole": ((2,), pl.BlockSpec((4, 16, 256)), lambda i: X),
        "no shape": ((2,), pl.BlockSpec(), lambda i: X),
        "program": (
            (2, 2),
            pl.BlockSpec((None, 8, 256), lambda i, j: (i * 2 + j, 1, 0)),
            lambda i, j: X[i * 2 + j, 8:],
        ),
    }


@pytest.mark.long
@BOTH
def test_index_maps(interpret: bool, subtests: pytest.Subtests) -> None:
    for name, (grid, spec, part) in maps().items():
        steps = np.stack([part(*step) for step in np.ndindex(*grid)])
        ranks = len(steps.shape) - 1
        strides = [int(np.prod(grid[n + 1 :])) for n in range(len(grid))]

        def place(*step: Any, strides: list[int] = strides, ranks: int = ranks) -> tuple[Any, ...]:
            return (sum(i * n for i, n in zip(step, strides, strict=True)), *[0] * ranks)

        fn = pl.pallas_call(
            copy,
            like(steps),
            grid=grid,
            in_specs=[spec],
            out_specs=pl.BlockSpec((None, *steps.shape[1:]), place),
            interpret=interpret,
            debug=True,
        )
        for way, (result,) in ways(fn, X, interpret=interpret):
            with subtests.test(way, map=name):
                np.testing.assert_array_equal(result, steps)


@BOTH
def test_structures(interpret: bool) -> None:
    """Operands, results and scratch memory can be nested; what is not written is another's."""
    x, y = floats(8, 128), floats(8, 128, seed=1)

    def kernel(given: Any, factor: Any, product: Any, rest: Any, memory: Any) -> None:
        memory["sum"][...] = given["x"][...] + given["y"][0][...]
        memory["count"][0] = jnp.int32(3)
        product[...] = memory["sum"][...] * factor[0]
        rest["difference"][...] = given["x"][...] - given["y"][0][...] + memory["count"][0]

    fn = pl.pallas_call(
        kernel,
        (like(x), {"difference": like(x)}),
        in_specs=[
            {"x": pl.BlockSpec(), "y": (pl.BlockSpec(),)},
            pl.BlockSpec(memory_space=pltpu.SMEM),
        ],
        scratch_shapes=[{"sum": pltpu.VMEM((8, 128), F32), "count": pltpu.SMEM((1,), np.int32)}],
        interpret=interpret,
        name="nested",
        debug=True,
        cost_estimate=pl.CostEstimate(flops=3 * 1024, transcendentals=0, bytes_accessed=16 * 1024),
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=1 << 20),
    )
    operands = {"x": x, "y": (y,)}, np.array([2.5], F32)
    for way, (product, difference) in ways(fn, *operands, interpret=interpret):
        np.testing.assert_allclose(product, (x + y) * 2.5, rtol=1e-6, err_msg=way)
        np.testing.assert_allclose(difference, x - y + 3, rtol=1e-6, err_msg=way)


@pytest.mark.long
@BOTH
def test_aliases(interpret: bool, subtests: pytest.Subtests) -> None:
    """A result that begins as an operand keeps the blocks that no step writes."""

    def kernel(places: Any, y: Any, x: Any, out: Any, total: Any) -> None:
        out[...] = x[...] + 2 * y[...]
        total[...] = y[...] + places[0]

    def fn(places: Any, y: Any, x: Any) -> Any:
        of_step = pl.BlockSpec((1, 8, 128), lambda i, places: (places[i], 0, 0))
        return pl.pallas_call(
            kernel,
            (jax.ShapeDtypeStruct((4, 8, 128), F32), jax.ShapeDtypeStruct((2, 8, 128), F32)),
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=1,
                grid=(2,),
                in_specs=[of_step, of_step],
                out_specs=[of_step, pl.BlockSpec((1, 8, 128), lambda i, _: (i, 0, 0))],
            ),
            input_output_aliases={2: 0},
            interpret=interpret,
        )(places, y, x)

    def expected(places: np.ndarray, y: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        out = x.copy()
        out[places] += 2 * y[places]
        return out, y[places] + places[0]

    x, y, places = floats(4, 8, 128), floats(4, 8, 128, seed=1), np.array([3, 1], np.int32)
    given = jnp.asarray(x)
    for got, own in zip(jax.jit(fn)(places, y, given), expected(places, y, x), strict=True):
        with subtests.test("result"):
            np.testing.assert_allclose(got, own, rtol=1e-6)
    with subtests.test("the operand stays"):
        np.testing.assert_array_equal(given, x)

    many = np.array([[3, 1], [0, 2], [2, 3]], np.int32)
    xs, ys = floats(3, 4, 8, 128, seed=2), floats(4, 3, 8, 128, seed=3)
    table = {
        "not the prefetched": ((None, 1, 0), (places, ys, xs)),
        "only the prefetched": ((0, None, None), (many, y, x)),
        "the alias second": ((0, None, 1), (many, y, np.moveaxis(xs, 0, 1))),
        "the alias last": ((0, None, 3), (many, y, np.moveaxis(xs, 0, 3))),
        "not the alias": ((None, 1, None), (places, ys, x)),
        "the prefetched last": ((1, 1, 0), (many.T, ys, xs)),
        "of one": ((0, 1, 0), (many[:1], ys[:, :1], xs[:1])),
    }
    for name, (axes, operands) in table.items():
        pairs = list(zip(operands, axes, strict=True))
        size = next(array.shape[axis] for array, axis in pairs if axis is not None)
        rows = (
            [a if axis is None else np.take(a, n, axis) for a, axis in pairs] for n in range(size)
        )
        oracles = [np.stack(parts) for parts in zip(*(expected(*row) for row in rows), strict=True)]
        with subtests.test(mapped=name):
            for got, oracle in zip(jax.jit(jax.vmap(fn, axes))(*operands), oracles, strict=True):
                np.testing.assert_allclose(got, oracle, rtol=1e-6)


@pytest.mark.long
@BOTH
def test_vmap(interpret: bool, subtests: pytest.Subtests) -> None:
    """Programs have the numbers and the count that they have without it."""

    def kernel(x: Any, y: Any, out: Any, count: Any) -> None:
        @pl.when(pl.program_id(1) == 0)
        def _() -> None:
            out[...] = jnp.zeros_like(out)

        out[...] += x[...] * (1 + pl.program_id(0)) - y[...] * pl.program_id(1)
        count[...] = jnp.full(count.shape, pl.num_programs(0) * 10 + pl.num_programs(1))

    def fn(x: Any, y: Any) -> Any:
        return pl.pallas_call(
            kernel,
            (jax.ShapeDtypeStruct((2, 8, 128), F32), jax.ShapeDtypeStruct((8, 128), np.int32)),
            grid=(2, 3),
            in_specs=[
                pl.BlockSpec((None, 8, 128), lambda i, j: (i, 0, j)),
                pl.BlockSpec((None, 8, 128), lambda i, j: (j, 0, 0)),
            ],
            out_specs=[pl.BlockSpec((None, 8, 128), lambda i, _: (i, 0, 0)), pl.BlockSpec()],
            cost_estimate=pl.CostEstimate(flops=9, transcendentals=0, bytes_accessed=9),
            interpret=interpret,
            debug=True,
        )(x, y)

    def expected(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        scaled = x.reshape(2, 8, 3, 128).swapaxes(1, 2) * np.array([1, 2])[:, None, None, None]
        return (scaled - y * np.arange(3)[:, None, None]).sum(1)

    x, y = floats(2, 8, 384), floats(3, 8, 128, seed=1)
    xs, ys = floats(4, 2, 8, 384, seed=2), floats(4, 3, 8, 128, seed=3)
    both = np.stack([expected(a, b) for a, b in zip(xs, ys, strict=True)])
    outer = np.stack([[expected(a, b) for b in ys] for a in xs])
    move = np.moveaxis
    table: dict[str, tuple[Any, tuple[np.ndarray, np.ndarray], np.ndarray]] = {
        "the second dimension": (jax.vmap(fn, (1, 1)), (move(xs, 0, 1), move(ys, 0, 1)), both),
        "another result": (jax.vmap(fn, (0, 1), 1), (xs, move(ys, 0, 1)), move(both, 0, 1)),
        "the first": (jax.vmap(fn, (0, None)), (xs, y), np.stack([expected(a, y) for a in xs])),
        "the second": (
            jax.vmap(fn, (None, 1)),
            (x, move(ys, 0, 1)),
            np.stack([expected(x, b) for b in ys]),
        ),
        "one": (jax.vmap(fn), (xs[:1], ys[:1]), both[:1]),
        "nested": (jax.vmap(jax.vmap(fn, (None, 0)), (1, None)), (move(xs, 0, 1), ys), outer),
    }
    if interpret:  # a TPU's blocks have the last two dimensions
        table["the last"] = jax.vmap(fn, (3, 2)), (move(xs, 0, 3), move(ys, 0, 2)), both
    for name, (mapped, operands, oracle) in table.items():
        with subtests.test(mapped=name), jax.enable_checks(name == "nested"):
            if name in ("one", "another result"):  # the kernel is not all that is lowered
                computed = iter([("executed", jax.jit(mapped)(*operands))])
            else:
                computed = ways(mapped, *operands, interpret=interpret)
            for way, (result, count) in computed:
                np.testing.assert_allclose(result, oracle, rtol=1e-4, atol=1e-5, err_msg=way)
                np.testing.assert_array_equal(count, np.full(count.shape, 23), err_msg=way)


@BOTH
def test_bounds_of_the_grid_that_are_computed(interpret: bool) -> None:
    """Only so many blocks are written; under vmap, as many of each."""
    x = floats(32, 128)

    def fn(blocks: Any, x: Any) -> Any:
        def kernel(x: Any, _: Any, out: Any) -> None:
            out[...] = x[...] + pl.num_programs(0)

        block = pl.BlockSpec((8, 128), lambda i: (i, 0))
        return pl.pallas_call(
            kernel,
            like(x),
            grid=(blocks,),
            in_specs=[block, block],
            out_specs=block,
            input_output_aliases={1: 0},
            interpret=interpret,
        )(x, jnp.zeros_like(x))

    def expected(blocks: int, x: np.ndarray) -> np.ndarray:
        return np.where(np.arange(32)[:, None] < 8 * blocks, x + blocks, 0)

    np.testing.assert_allclose(jax.jit(fn)(3, x), expected(3, x), rtol=1e-6)
    xs = floats(2, 32, 128, seed=1)
    mapped = jax.jit(jax.vmap(fn, (None, 0)))(2, xs)
    np.testing.assert_allclose(mapped, np.stack([expected(2, x) for x in xs]), rtol=1e-6)


@BOTH
def test_gradients(interpret: bool, subtests: pytest.Subtests) -> None:
    """Forward by JAX's own rule; backward by that of a user, whose kernels are two."""
    x, dx = floats(16, 128), floats(16, 128, seed=1)
    block = pl.BlockSpec((8, 128), lambda i: (i, 0))
    call = partial(pl.pallas_call, grid=(2,), out_specs=block, interpret=interpret)

    def waves(x: Any, y: Any, out: Any) -> None:
        out[...] = jnp.sin(x[...]) * y[...] + x[...] ** 2

    fn = call(waves, like(x), in_specs=[block, block], cost_estimate=pl.CostEstimate(1, 1, 1))
    y, dy = floats(16, 128, seed=2), floats(16, 128, seed=3)
    value, tangent = jax.jit(lambda *given: jax.jvp(fn, given[:2], given[2:]))(x, y, dx, dy)
    with subtests.test("value"):
        np.testing.assert_allclose(value, np.sin(x) * y + x**2, rtol=1e-4, atol=1e-5)
    with subtests.test("tangent"):
        own = np.cos(x) * dx * y + np.sin(x) * dy + 2 * x * dx
        np.testing.assert_allclose(tangent, own, rtol=1e-4, atol=1e-5)

    @jax.custom_vjp
    def cube(x: Any) -> Any:
        def kernel(x: Any, out: Any) -> None:
            out[...] = x[...] ** 3

        return call(kernel, like(x), in_specs=[block])(x)

    def backward(x: Any, gradient: Any) -> tuple[Any]:
        def kernel(x: Any, gradient: Any, out: Any) -> None:
            out[...] = 3 * x[...] * x[...] * gradient[...]

        return (call(kernel, like(x), in_specs=[block, block])(x, gradient),)

    cube.defvjp(lambda x: (cube(x), x), backward)
    with subtests.test("gradient"):
        gradient = jax.jit(jax.grad(lambda x: (cube(x) * y).sum()))(x)
        np.testing.assert_allclose(gradient, 3 * x**2 * y, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(
    jax.__version_info__ >= (0, 10), reason="JAX has no checks in kernels from 0.10 on"
)
@BOTH
def test_checks(interpret: bool, subtests: pytest.Subtests) -> None:
    """A check in a kernel is an error of the function, and so is a block past the end."""

    def kernel(x: Any, limit: Any, out: Any) -> None:
        checkify.check(jnp.all(x[...] < limit[0]), "too large in {}", pl.program_id(0))
        out[...] = jnp.log(x[...])

    block = pl.BlockSpec((8, 128), lambda i: (i, 0))

    def fn(x: Any, limit: Any, blocks: int = 2) -> Any:
        return pl.pallas_call(
            kernel,
            like(x),
            grid=(blocks,),
            out_specs=block,
            interpret=interpret,
            in_specs=[block, pl.BlockSpec(memory_space=pltpu.SMEM)],
        )(x, limit)

    x = np.arange(1, 2049, dtype=F32).reshape(16, 128)
    checked = jax.jit(checkify.checkify(fn, checkify.user_checks))
    for limit, message in ((3000, ""), (2000, "too large in 1"), (900, "too large in 0")):
        error, result = checked(x, np.array([limit], F32))
        with subtests.test(limit=limit):
            assert (error.get() or "").startswith(message)
            assert bool(error.get()) == bool(message)
            np.testing.assert_allclose(result, np.log(x), rtol=1e-5)
    for blocks in (2, 3) if interpret else ():  # a TPU's kernel can't hold such an error
        of_blocks = checkify.checkify(partial(fn, blocks=blocks), checkify.index_checks)
        error, _ = jax.jit(of_blocks)(x, np.array([0], F32))
        with subtests.test(blocks=blocks):
            assert bool(error.get()) == (blocks == 3)


@BOTH
def test_references_from_outside(interpret: bool) -> None:
    """A kernel can use references of ``run_state``, and so does a map over cores."""
    x = floats(8, 128)

    def body(refs: Any) -> None:
        source, target = refs

        def kernel(y: Any, out: Any) -> None:
            pltpu.sync_copy(source, target)
            out[...] = y[...] + 1

        result = pl.pallas_call(kernel, like(x), interpret=interpret)(source[...])
        source[...] = result

    first, second = jax.jit(pl.run_state(body))((jnp.asarray(x), jnp.zeros_like(x)))
    np.testing.assert_array_equal(second, x)
    np.testing.assert_allclose(first, x + 1, rtol=1e-6)


BLOCK = pl.BlockSpec((8, 256), lambda i: (i, 0))


def wrong_calls() -> dict[str, tuple[dict[str, Any], tuple[Any, ...], type[Exception], str]]:
    """Return options, operands, and the error."""
    return {
        "too few dimensions": (
            {"in_specs": [pl.BlockSpec((8,), lambda i: (i,))]},
            (X[0],),
            ValueError,
            "dimensions",
        ),
        "too few numbers": (
            {"in_specs": [pl.BlockSpec((8, 128), lambda i: (i,))]},
            (X[0],),
            ValueError,
            "must return",
        ),
        "no integer": (
            {"in_specs": [pl.BlockSpec((8, 128), lambda i: (i * 1.0, 0))]},
            (X[0],),
            ValueError,
            "integer",
        ),
        "an array in a map": (
            {"in_specs": [pl.BlockSpec((8, 128), lambda i: (i, jnp.asarray(np.array([0, 1]))[i]))]},
            (X[0],),
            ValueError,
            "constants",
        ),
        "too many specs": ({"in_specs": [BLOCK, BLOCK]}, (X[0],), ValueError, "specs"),
        "a result's spec too many": ({"out_specs": [BLOCK, BLOCK]}, (X[0],), ValueError, "specs"),
        "no operand": ({"input_output_aliases": {1: 0}}, (X[0],), ValueError, "input index 1"),
        "no result": ({"input_output_aliases": {0: 1}}, (X[0],), ValueError, "output index 1"),
        "another shape": (
            {"input_output_aliases": {0: 0}},
            (X[1, :8],),
            ValueError,
            "different abstract value",
        ),
        "another dtype": (
            {
                "input_output_aliases": {0: 0},
                "kernel": lambda x, out: operator.setitem(out, ..., x[...] * 0.5),
            },
            (X[0].astype(np.int32),),
            ValueError,
            "different abstract value",
        ),
        "a grid of names": ({"grid": ("a",)}, (X[0],), ValueError, "[Gg]rid"),
        "a grid and its spec": (
            {"grid_spec": pl.GridSpec(grid=(2,))},
            (X[0],),
            ValueError,
            "grid_spec",
        ),
        "a block of words": (
            {"in_specs": [pl.BlockSpec(("x", 128), lambda i: (i, 0))]},
            (X[0],),
            ValueError,
            "block dimension",
        ),
        "a kernel with a result": (
            {"kernel": lambda x, out: x[...]},
            (X[0],),
            ValueError,
            "return",
        ),
        "a kernel with an array": (
            {"kernel": lambda x, out: copy(jnp.asarray(X[0, :8]), out)},
            (X[0],),
            ValueError,
            "captures",
        ),
        "a number past the grid": (
            {"kernel": lambda x, out: operator.setitem(out, ..., x[...] + pl.program_id(1))},
            (X[0],),
            ValueError,
            "[Aa]xis|out of",
        ),
    }


@pytest.mark.parametrize("accepted", [True, False])
def test_blocks_that_a_tpu_takes(accepted: bool, subtests: pytest.Subtests) -> None:
    """The last two dimensions are multiples of 8 and 128, or whole; a line is 128 words."""
    line, rows = lambda i: (i,), lambda i: (i, 0)
    table: dict[str, tuple[bool, tuple[int, ...], Any, dict[str, Any], dict[str, Any]]] = {
        "a line of words": (True, (512,), F32, {"block_shape": (128,), "index_map": line}, {}),
        "of bytes": (True, (1024,), np.int8, {"block_shape": (512,), "index_map": line}, {}),
        "of halves": (True, (512,), jnp.bfloat16, {"block_shape": (256,), "index_map": line}, {}),
        "of booleans": (True, (512,), bool, {"block_shape": (128,), "index_map": line}, {}),
        "whole width": (True, (16, 100), F32, {"block_shape": (8, 100), "index_map": rows}, {}),
        "whole height": (
            *(True, (5, 256), F32),
            {"block_shape": (5, 128), "index_map": lambda i: (0, i)},
            {},
        ),
        "two buffers": (
            *(True, (16, 128), F32),
            {"block_shape": (8, 128), "index_map": rows, "pipeline_mode": pl.Buffered(2)},
            {},
        ),
        "a short line of words": (
            False,
            (512,),
            F32,
            {"block_shape": (64,), "index_map": line},
            {},
        ),
        "of few bytes": (False, (1024,), np.int8, {"block_shape": (256,), "index_map": line}, {}),
        "of few halves": (
            *(False, (512,), jnp.bfloat16),
            {"block_shape": (128,), "index_map": line},
            {},
        ),
        "a part of the width": (
            *(False, (16, 256), F32),
            {"block_shape": (8, 64), "index_map": rows},
            {},
        ),
        "a part of the height": (
            *(False, (16, 128), F32),
            {"block_shape": (4, 128), "index_map": rows},
            {},
        ),
        "three buffers": (
            *(False, (16, 128), F32),
            {"block_shape": (8, 128), "index_map": rows, "pipeline_mode": pl.Buffered(3)},
            {},
        ),
        "lookahead": (
            *(False, (16, 128), F32),
            {
                "block_shape": (8, 128),
                "index_map": rows,
                "pipeline_mode": pl.Buffered(2, use_lookahead=True),
            },
            {},
        ),
        "a part of HBM": (
            *(False, (16, 128), F32),
            {"block_shape": (8, 128), "index_map": rows, "memory_space": pltpu.HBM},
            {},
        ),
        "elements and blocks": (
            *(False, (16, 128), F32),
            {"block_shape": (pl.Element(8), 128), "index_map": rows},
            {},
        ),
        "a slice": (
            *(False, (16, 128), F32),
            {"block_shape": (pl.BoundedSlice(8), 128), "index_map": lambda i: (pl.ds(i, 8), 0)},
            {},
        ),
        "a slice without its size": (
            *(False, (16, 128), F32),
            {"block_shape": (pl.BoundedSlice(8), 128), "index_map": rows},
            {},
        ),
        "no grid": (
            *(False, (16, 128), F32),
            {"block_shape": (8, 128), "index_map": lambda: (1, 0)},
            {"grid": ()},
        ),
        "semantics of another grid": (
            *(False, (16, 128), F32),
            {"block_shape": (8, 128), "index_map": rows},
            {"compiler_params": pltpu.CompilerParams(dimension_semantics=("parallel",) * 2)},
        ),
    }
    for name, (takes, shape, dtype, spec, options) in table.items():
        if takes != accepted:
            continue
        fn = pl.pallas_call(
            lambda x, out: None,
            jax.ShapeDtypeStruct((8, 128), F32),
            in_specs=[pl.BlockSpec(**spec)],
            **({"grid": (2,)} | options),
        )
        with subtests.test(block=name):
            if accepted:
                jax.jit(fn).lower(jax.ShapeDtypeStruct(shape, dtype))
                continue
            with pytest.raises(
                Exception, match=r"(?i)block|buffer|lookahead|semantics|window|slice"
            ):
                jax.jit(fn).lower(jax.ShapeDtypeStruct(shape, dtype))


@BOTH
def test_wrong_calls_are_refused(interpret: bool, subtests: pytest.Subtests) -> None:
    for name, (options, operands, error, message) in wrong_calls().items():
        call = {
            "kernel": copy,
            "out_shape": like(X[0]),
            "grid": (2,),
            "in_specs": [BLOCK],
            "out_specs": BLOCK,
        } | options
        with subtests.test(wrong=name), pytest.raises(error, match=message):
            jax.jit(pl.pallas_call(**call, interpret=interpret))(*operands)
    right = pl.pallas_call(copy, like(X[0]), grid=(2,), in_specs=[BLOCK], out_specs=BLOCK)
    np.testing.assert_array_equal(jax.jit(right)(X[0]), X[0])
