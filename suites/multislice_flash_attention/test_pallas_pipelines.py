"""Pipelines within a kernel: which blocks they read, in what buffers, and what is written back."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from suites.multislice_flash_attention.mosaic_by_hand import Module, printed
from suites.multislice_flash_attention.plain_kernels import EVERYWHERE, floats
from suites.shared.jax_releases import needs_tpu_interpret_mode

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("1"),
    pytest.mark.upstream("jax-ml/jax#25097"),
    pytest.mark.deadline(60),
    needs_tpu_interpret_mode,
]
F32 = np.float32


def call(
    body: Callable[..., None],
    shape: tuple[int, ...],
    *operands: Any,
    copies: int | None = None,
    **options: Any,
) -> Any:
    """Call a kernel that copies its operands itself, with a result of this shape.

    What it was lowered to must have the same result, with so many copies.
    """
    options = {"in_specs": [EVERYWHERE] * len(operands), "out_specs": EVERYWHERE} | options
    fn = pl.pallas_call(body, jax.ShapeDtypeStruct(shape, F32), debug=True, **options)
    lowered, text = printed(fn, *operands)
    result = lowered.compile()(*operands)
    module, by_hand = Module(text), np.full(shape, np.nan, F32)
    module.run([*operands], [by_hand])
    np.testing.assert_allclose(by_hand, result, rtol=1e-5, atol=1e-6)
    assert copies in (None, len(module.copies))
    return result


def double(x: Any, out: Any) -> None:
    out[...] = x[...] * 2


ROWS = pl.BlockSpec((8, 128), lambda i: (i, 0))
X = floats(40, 256)


def rows(buffers: int = 2, **options: Any) -> pl.BlockSpec:
    return pl.BlockSpec((8, 128), lambda i: (i, 0), pipeline_mode=pl.Buffered(buffers, **options))


def blocks_and_results() -> dict[
    str, tuple[tuple[int, ...], pl.BlockSpec, pl.BlockSpec, np.ndarray]
]:
    """Return the grid, the blocks read and written, and the result."""
    return {
        "four buffers": ((5,), rows(4), rows(2), X[:, :128] * 2),
        "less steps than buffers": ((1,), rows(4), ROWS, X[:8, :128] * 2),
        "lookahead past the end": ((2,), rows(4, use_lookahead=True), ROWS, X[:16, :128] * 2),
        "one block twice": (
            (4,),
            pl.BlockSpec((8, 128), lambda i: (i // 2, 1)),
            ROWS,
            np.repeat(X[:16, 128:].reshape(2, 8, 128), 2, 0).reshape(32, 128) * 2,
        ),
        "one block twice, three buffers": (
            (6,),
            pl.BlockSpec(
                (8, 128), lambda i: (i // 2, 1), pipeline_mode=pl.Buffered(3, use_lookahead=True)
            ),
            ROWS,
            np.repeat(X[:24, 128:].reshape(3, 8, 128), 2, 0).reshape(48, 128) * 2,
        ),
        "a smaller last block": (
            (3, 2),
            pl.BlockSpec((16, 128), lambda i, j: (i, j)),
            pl.BlockSpec((16, 128), lambda i, j: (i, j)),
            X * 2,
        ),
        "backwards": (
            (5, 2),
            pl.BlockSpec((8, 128), lambda i, j: (4 - i, j)),
            pl.BlockSpec((8, 128), lambda i, j: (i, 1 - j)),
            np.flip(X.reshape(5, 8, 2, 128), (0, 2)).reshape(X.shape) * 2,
        ),
        "whole rows": (
            (5,),
            pl.BlockSpec((8, 256), lambda i: (i, 0)),
            pl.BlockSpec((pl.Blocked(8), pl.Blocked(256)), lambda i: (4 - i, 0)),
            np.flip(X.reshape(5, 8, 256), 0).reshape(X.shape) * 2,
        ),
        "elements": (
            (3,),
            pl.BlockSpec((pl.Element(8), pl.Element(128)), lambda i: (16 * i, 128)),
            ROWS,
            X.reshape(5, 8, 256)[::2, :, 128:].reshape(24, 128) * 2,
        ),
        "slices": (
            (2,),
            pl.BlockSpec(
                (pl.BoundedSlice(16), pl.BoundedSlice(128)),
                lambda i: (pl.ds(24 * i, 16), pl.ds(128, 128)),
            ),
            pl.BlockSpec((16, 128), lambda i: (i, 0)),
            np.concatenate([X[:16, 128:], X[24:, 128:]]) * 2,
        ),
    }


def copies_of(grid: tuple[int, ...], *specs: pl.BlockSpec) -> int:
    """Return how many blocks are copied: none again in the step after, which has it already."""
    steps = list(np.ndindex(*grid))
    places = [[str(spec.index_map(*step)) for step in steps] for spec in specs]
    return sum(len(list(groupby(of_spec))) for of_spec in places)


@pytest.mark.long
@pytest.mark.parametrize("pipelined", [True, False])
def test_blocks(pipelined: bool, subtests: pytest.Subtests) -> None:
    """The same with copies that are not on their way while the kernel computes."""
    for name, (grid, given, result, oracle) in blocks_and_results().items():
        if not pipelined and name not in ("a smaller last block", "slices"):
            continue  # the copies are the same, but for when they are awaited

        def body(x: Any, out: Any, grid: Any = grid, specs: Any = (given, result)) -> None:
            in_specs, out_specs = [specs[0]], [specs[1]]
            pltpu.emit_pipeline(
                double,
                grid=grid,
                in_specs=in_specs,
                out_specs=out_specs,
                no_pipelining=not pipelined,
            )(x, out)

        with subtests.test(blocks=name):
            copies = copies_of(grid, given, result) if pipelined else 2 * int(np.prod(grid))
            computed = call(body, oracle.shape, X, copies=copies)
            np.testing.assert_allclose(computed, oracle, rtol=1e-6)


def test_squeezed_blocks_and_programs() -> None:
    """Programs of the pipeline have numbers of their own, and its kernel has scratch memory."""
    x = floats(3, 16, 128)

    def kernel(x: Any, out: Any, memory: Any) -> None:
        memory[...] = x[...] + 10 * pl.program_id(0) + pl.program_id(1)
        out[...] = memory[...] * (pl.num_programs(0) + pl.num_programs(1))

    def body(x: Any, out: Any, memory: Any) -> None:
        spec = pl.BlockSpec((None, 8, 128), lambda i, j: (i, j, 0))
        pipeline = pltpu.emit_pipeline(kernel, grid=(3, 2), in_specs=[spec], out_specs=[spec])
        pipeline(x, out, scratches=[memory])

    steps = np.repeat(10 * np.arange(3)[:, None] + np.arange(2), 8, axis=1)[..., None]
    result = call(body, x.shape, x, copies=12, scratch_shapes=[pltpu.VMEM((8, 128), F32)])
    np.testing.assert_allclose(result, (x + steps) * 5, rtol=1e-5)


def test_operands_in_vmem() -> None:
    """Blocks of what is in VMEM already are not copied."""

    def body(x: Any, out: Any) -> None:
        spec = pl.BlockSpec((8, 128), lambda i, j: (i, j))
        pltpu.emit_pipeline(double, grid=(5, 2), in_specs=[spec], out_specs=[spec])(x, out)

    in_vmem = pl.BlockSpec(memory_space=pltpu.VMEM)
    result = call(body, X.shape, X, copies=0, in_specs=[in_vmem], out_specs=in_vmem)
    np.testing.assert_allclose(result, X * 2, rtol=1e-6)


@pytest.mark.long
@pytest.mark.skipif(
    jax.__version_info__ >= (0, 10), reason="JAX's pipelines add to no results from 0.10 on"
)
@pytest.mark.parametrize("steps", [1, 5])
def test_accumulators(steps: int, subtests: pytest.Subtests) -> None:
    """A result that pipelines add to: the second one begins with what the first one has written."""
    x, y, start = X[:, :128], X[:, 128:], floats(40, 128, seed=1)
    block = pl.BlockSpec((40 // steps, 128), lambda i: (i, 0))

    def kernel(x: Any, out: Any) -> None:
        out[...] = x[...] * 3

    for schedule, reset in ((None, False), ("fixed", False)) if steps == 1 else ((None, True),):

        def body(x: Any, y: Any, start: Any, out: Any, how: Any = (schedule, reset)) -> None:
            pltpu.sync_copy(start, out)
            fn = pltpu.emit_pipeline(
                kernel,
                grid=(steps,),
                in_specs=[block],
                out_specs=[block],
                should_accumulate_out=(True,),
            )
            fn(x, out, init_accumulators=how[1], schedule=how[0])
            fn(y, out, schedule=(None, how[0]))

        expected = 3 * x + 3 * y + (0 if reset else start)
        with subtests.test(schedule=schedule, reset=reset):
            result = call(body, start.shape, x, y, start)
            np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(
    jax.__version_info__ >= (0, 10), reason="JAX's pipelines know no next one from 0.10 on"
)
def test_a_pipeline_fetches_for_the_next() -> None:
    """The last step of one begins the copies of the next, whose first step ends those before."""
    x = floats(3, 24, 128)

    def body(x: Any, out: Any) -> None:
        fn, allocate = pltpu.emit_pipeline_with_allocations(
            double,
            grid=(3,),
            in_specs=[ROWS],
            out_specs=[ROWS],
            should_accumulate_out=(False,),
        )

        def cycles(buffers: Any) -> None:
            def cycle(n: Any, _: Any) -> Any:
                def prefetch(given: Any, __: Any, scheduler: Any) -> None:
                    scheduler.prefetch(given, x.at[jnp.minimum(n + 1, 2)])

                fn(
                    *(x.at[n], out.at[n]),
                    allocations=buffers,
                    first_cycle=n == 0,
                    last_cycle=n == 2,
                    prefetch=prefetch,
                )

            jax.lax.fori_loop(0, 3, cycle, None)

        pl.run_scoped(cycles, allocate(x.at[0], out.at[0]))

    np.testing.assert_allclose(call(body, x.shape, x, copies=18), x * 2, rtol=1e-6)


@pytest.mark.parametrize(
    ("grid", "parallel"),
    [((4, 3), "0"), ((5, 3), "0"), ((5, 4), "01"), ((2, 3), "1"), ((3, 3), "1")],
    ids=["even", "uneven", "the second", "the longer", "as long as the other"],
)
def test_divided_over_programs(grid: tuple[int, int], parallel: str) -> None:
    """Two programs share the steps of a dimension that is said to be parallel.

    The steps of one that is not are in order, each in one program with those before it.
    """
    semantics = [pltpu.PARALLEL if n in parallel else pltpu.ARBITRARY for n in "01"]
    x = floats(8 * grid[0], 128 * grid[1])
    alone = None if parallel == "01" else 1 - int(parallel)

    def body(x: Any, out: Any) -> None:
        def total(x: Any, out: Any) -> None:
            @pl.when(True if alone is None else pl.program_id(alone) == 0)
            def _() -> None:
                out[...] = jnp.zeros_like(out)

            out[...] += x[...] * 2

        def place(*step: Any) -> tuple[Any, ...]:
            return tuple(0 if n == alone else i for n, i in enumerate(step))

        pltpu.emit_pipeline(
            total,
            grid=grid,
            core_axis=0,
            dimension_semantics=tuple(semantics),
            in_specs=[pl.BlockSpec((8, 128), lambda i, j: (i, j))],
            out_specs=[pl.BlockSpec((8, 128), place)],
        )(x, out)

    blocks = x.reshape(grid[0], 8, grid[1], 128) * 2
    expected = blocks if alone is None else blocks.sum(2 * alone, keepdims=True)
    shape = expected.shape[0] * 8, expected.shape[2] * 128
    result = call(body, shape, x, grid=(2,))
    np.testing.assert_allclose(result, expected.reshape(shape), rtol=1e-4, atol=1e-5)


def test_grids_that_a_kernel_reads(subtests: pytest.Subtests) -> None:
    """How many steps there are, a number in SMEM decides: none, one, or more than buffers."""
    x, start = X, floats(40, 256, seed=1)

    def body(steps: Any, x: Any, start: Any, out: Any) -> None:
        pltpu.sync_copy(start, out)
        spec = pl.BlockSpec((8, 128), lambda i, j: (i, j), pipeline_mode=pl.Buffered(3))
        written = pl.BlockSpec((8, 128), lambda i, j: (i, j))
        grid = (steps[0], 2)
        pltpu.emit_pipeline(double, grid=grid, in_specs=[spec], out_specs=[written])(x, out)

    specs = [pl.BlockSpec(memory_space=pltpu.SMEM), EVERYWHERE, EVERYWHERE]
    for steps in (0, 1, 4):
        expected = start.copy()
        expected[: 8 * steps] = x[: 8 * steps] * 2
        with subtests.test(steps=steps):
            number = np.array([steps], np.int32)
            operands, copies = (number, x, start), 1 + 4 * steps
            result = call(body, x.shape, *operands, copies=copies, in_specs=specs)
            np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_trees_of_operands() -> None:
    """A pipeline reads trees of arrays: blocks of several sizes and types, and numbers in SMEM."""
    x, y = X, (np.arange(20 * 384).reshape(20, 384) % 97).astype(np.int16)
    factors = np.arange(1, 4, dtype=np.int32)[:, None]

    def kernel(blocks: Any, factor: Any, out: Any) -> None:
        narrow = blocks["y"][...].astype(F32).sum(axis=0, keepdims=True)
        out[...] = blocks["x"][...] * factor[0, 0] + narrow

    def body(x: Any, y: Any, factors: Any, out: Any) -> None:
        pltpu.emit_pipeline(
            kernel,
            grid=(3, 2),
            in_specs=[
                {
                    "x": pl.BlockSpec((8, 128), lambda i, j: (i, j)),
                    "y": pl.BlockSpec((pl.Blocked(20), 128), lambda i, j: (0, i)),
                },
                pl.BlockSpec((1, 1), lambda i, j: (i, 0), memory_space=pltpu.SMEM),
            ],
            out_specs=pl.BlockSpec((8, 128), lambda i, j: (i, j)),
            trace_scopes=False,
        )({"x": x, "y": y}, factors, out)

    sums = np.repeat(y.astype(F32).sum(axis=0).reshape(3, 1, 1, 128), 2, axis=2)
    expected = x[:24].reshape(3, 8, 2, 128) * factors.reshape(3, 1, 1, 1) + sums
    result = call(body, (24, 256), x, y, factors, copies=18)
    np.testing.assert_allclose(result, expected.reshape(24, 256), rtol=1e-6)


def test_wrong_pipelines_are_refused(subtests: pytest.Subtests) -> None:
    emit = pltpu.emit_pipeline
    wrong: dict[str, tuple[dict[str, Any], type[Exception]]] = {
        "a grid of words": ({"grid": ("x",)}, ValueError),
        "two kinds of cores": ({"grid": (2,), "core_axis": 0, "core_axis_name": "x"}, ValueError),
        "no parallel dimension": ({"grid": (2,), "core_axis": 0}, NotImplementedError),
        "semantics of another grid": (
            {"grid": (2,), "core_axis": 0, "dimension_semantics": (pltpu.PARALLEL,) * 2},
            ValueError,
        ),
        "no such block": (
            {"grid": (2,), "in_specs": [pl.BlockSpec((8, "x"), lambda i: (i, 0))]},
            ValueError,
        ),
        "no block": (
            {"grid": (2,), "in_specs": [pl.BlockSpec(None, lambda i: (i, 0))]},
            ValueError,
        ),
        "blocks that are no tiles": (
            {"grid": (2,), "in_specs": [pl.BlockSpec((12, 128), lambda i: (i, 0))]},
            ValueError,
        ),
        "no buffer": ({"grid": (2,), "in_specs": [rows(0)]}, ValueError),
        "lookahead of results": (
            {"grid": (2,), "out_specs": [rows(2, use_lookahead=True)]},
            ValueError,
        ),
        "a block in HBM": (
            {
                "grid": (2,),
                "in_specs": [pl.BlockSpec((8, 128), lambda i: (i, 0), memory_space=pltpu.HBM)],
            },
            ValueError,
        ),
    }
    for name, (options, error) in wrong.items():

        def body(x: Any, out: Any, options: Any = options) -> None:
            emit(double, **{"in_specs": [ROWS], "out_specs": [ROWS]} | options)(x, out)

        with subtests.test(wrong=name), pytest.raises(error):
            call(body, (16, 128), X, grid=(2,))

    def right(x: Any, out: Any) -> None:
        emit(double, grid=(5,), in_specs=[ROWS], out_specs=[ROWS])(x, out)

    np.testing.assert_allclose(call(right, (40, 128), X), X[:, :128] * 2, rtol=1e-6)
