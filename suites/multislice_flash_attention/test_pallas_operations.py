"""What a Pallas kernel can compute with blocks in VMEM, each operation against NumPy.

Every kernel is lowered to Mosaic, and what JAX's interpreter makes of it is executed; what it was
lowered to is computed besides, operation by operation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from statistics import NormalDist
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from suites.multislice_flash_attention.mosaic_by_hand import computed, lower, printed
from suites.shared.jax_releases import needs_tpu_interpret_mode

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("1"),
    pytest.mark.upstream("pytorch/xla#8850"),
    pytest.mark.deadline(60),
    needs_tpu_interpret_mode,
]

Function = Callable[..., Any]
# Of JAX's or NumPy's module and the operands; or one of operands in JAX, and one in NumPy.
Operations = Mapping[str, Function | tuple[Function, Function]]
SHAPE = (8, 128)
UNARY = (
    *("abs", "negative", "sign", "square", "sin", "cos", "tan", "tanh", "exp", "exp2"),
    *("round", "ceil", "floor"),
)
ARITHMETIC = ("add", "subtract", "multiply", "maximum", "minimum")
COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")


def floats(seed: int = 0, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32) * 3


def integers(low: int, high: int, seed: int = 0, dtype: Any = np.int32) -> np.ndarray:
    return np.random.default_rng(seed).integers(low, high, SHAPE).astype(dtype)


def check(
    subtests: pytest.Subtests, operations: Operations, *operands: Any, rtol: float = 2e-5
) -> None:
    """Compute all operations of the same operands in one kernel, and compare each with NumPy."""
    fn, oracles = kernel_of(operations, *operands)
    compiled, compute = lower(fn, *operands)
    for name, oracle, result in zip(operations, oracles, compiled(*operands), strict=True):
        with subtests.test(operation=name):
            close(result, oracle, rtol)
    with subtests.test("as it was lowered"):
        for name, oracle, result in zip(operations, oracles, compute(), strict=True):
            close(result, oracle, rtol, name)


def kernel_of(
    operations: Operations, *operands: Any
) -> tuple[Callable[..., Any], list[np.ndarray]]:
    """Return a kernel that computes all operations, and the results in NumPy."""
    functions = [
        fn if isinstance(fn, tuple) else (partial(fn, jnp), partial(fn, np))
        for fn in operations.values()
    ]
    oracles = [np.atleast_2d(numpy(*map(np.asarray, operands))) for _, numpy in functions]
    narrow = {"int64": np.int32, "float64": np.float32}
    oracles = [array.astype(narrow.get(str(array.dtype), array.dtype)) for array in oracles]

    def kernel(*refs: Any) -> None:
        blocks = [ref[...] for ref in refs[: len(operands)]]
        for (compute, _), out in zip(functions, refs[len(operands) :], strict=True):
            out[...] = jnp.broadcast_to(compute(*blocks), out.shape).astype(out.dtype)

    shapes = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in oracles]
    return pl.pallas_call(kernel, shapes, debug=True), oracles


def close(result: Any, oracle: np.ndarray, rtol: float, name: str = "") -> None:
    relative = rtol if oracle.dtype.kind == "f" else 0
    np.testing.assert_allclose(result, oracle, rtol=relative, atol=rtol, err_msg=name)


@pytest.mark.long
def test_floats(subtests: pytest.Subtests) -> None:
    x, y = floats(0), floats(1)
    x[0, :3] = 0.5, 1.5, -2.5
    unary = {name: lambda m, x, _, n=name: getattr(m, n)(x) for name in UNARY}
    binary = {
        name: lambda m, x, y, n=name: m.where(getattr(m, n)(x, y), x, 2)
        for name in (*ARITHMETIC, "divide", *COMPARISONS)
    }
    inverse = np.vectorize(lambda p: NormalDist().inv_cdf((p + 1) / 2) / 2**0.5)
    operations: Operations = {
        **unary,
        **binary,
        **{
            name: lambda m, x, _, n=name: getattr(m, n)(abs(x) + 1)
            for name in ("sqrt", "log", "log1p")
        },
        "nextafter": lambda m, x, _: m.nextafter(x, x + 1) - x,
        "power": lambda m, x, y: m.power(abs(x) + 1, y),
        "cube": lambda m, x, _: x**3,
        "clip": lambda m, x, _: m.clip(x, -1, 1),
        "scalars": lambda m, x, y: 2 * x + (3 - y) / 4,
        "rsqrt": (lambda x, _: lax.rsqrt(abs(x) + 1), lambda x, _: (abs(x) + 1) ** -0.5),
        "reciprocal": (lambda x, _: pl.reciprocal(abs(x) + 1), lambda x, _: 1 / (abs(x) + 1)),
        "remainder": (lax.rem, np.fmod),
        "logistic": (lambda x, _: jax.nn.sigmoid(x), lambda x, _: 1 / (1 + np.exp(-x))),
        "erf_inv": (lambda x, _: lax.erf_inv(x / 16), lambda x, _: inverse(x / 16)),
        "clamp": (
            lambda x, y: lax.clamp(-abs(y), x, abs(y)),
            lambda x, y: np.clip(x, -abs(y), abs(y)),
        ),
        "relu": (lambda x, _: jax.nn.relu(x), lambda x, _: np.maximum(x, 0)),
        "stopped": (lambda x, y: lax.stop_gradient(x) + y, np.add),
    }
    check(subtests, operations, x, y, rtol=1e-4)
    x[0, :3] = np.inf, -np.inf, np.nan
    check(subtests, {"isfinite": lambda m, x: m.where(m.isfinite(x), 1, 0)}, x)


@pytest.mark.long
def test_integers(subtests: pytest.Subtests) -> None:
    x, y = integers(-99, 99, 0), integers(1, 31, 1)
    both: Operations = {
        name: lambda m, x, y, n=name: m.where(getattr(m, n)(x, y) > 0, x, y)
        for name in (*ARITHMETIC, *COMPARISONS, "bitwise_and", "bitwise_or", "bitwise_xor")
    }
    signed: Operations = {
        **{
            name: lambda m, x, _, n=name: getattr(m, n)(x)
            for name in ("abs", "negative", "sign", "invert")
        },
        "left": lambda m, x, y: m.left_shift(x, y),
        "right": lambda m, x, y: m.right_shift(x, y),
        "quotient": (lax.div, lambda x, y: np.trunc(x / y).astype(np.int32)),
        "remainder": (lax.rem, np.fmod),
        "logical right": (
            lax.shift_right_logical,
            lambda x, y: (x.view(np.uint32) >> y.view(np.uint32)).view(np.int32),
        ),
        "ones": (
            lambda x, _: lax.population_count(x),
            np.vectorize(lambda x, _: (int(x) & 0xFFFFFFFF).bit_count()),
        ),
        "leading zeros": (
            lambda x, _: lax.clz(x),
            np.vectorize(lambda x, _: 32 - (int(x) & 0xFFFFFFFF).bit_length()),
        ),
        "as floats": lambda m, x, _: x.astype(m.float32) / 2,
        "as bytes": lambda m, x, _: x.astype(m.int8).astype(m.int32),
        "as booleans": lambda m, x, y: (
            (x > y).astype(m.int32) + m.where((x % 2).astype(bool), 4, 8)
        ),
        "as bfloat16": (
            lambda x, _: x.astype(jnp.bfloat16).astype(jnp.float32),
            lambda x, _: x.astype(np.float32),
        ),
        "bits of a float": (
            lambda x, _: lax.bitcast_convert_type(x, jnp.float32),
            lambda x, _: x.view(np.float32),
        ),
        "choice of a number": (
            lambda x, y: lax.select_n(x > 3, x, y),
            lambda x, y: np.where(x > 3, y, x),
        ),
    }
    check(subtests, {**both, **signed}, x, y)
    x, y = (each.astype(np.uint32) * 2**25 for each in (integers(0, 99, 2), integers(0, 99, 3)))
    check(subtests, {f"unsigned {name}": fn for name, fn in both.items()}, x, y)
    x = integers(-99, 99, 0, np.int8)
    check(
        subtests,
        {"bytes": lambda m, x: x.astype(m.float32), "wider": lambda m, x: x.astype(m.int32)},
        x,
    )
    x = integers(0, 200, 0, np.uint8)
    check(
        subtests,
        {
            "unsigned bytes": lambda m, x: x.astype(m.uint32),
            "signed": lambda m, x: x.astype(m.int32),
        },
        x,
    )


RARER: Operations = {
    "quotient without a sign": (
        lambda _, n: lax.div(n.astype(jnp.uint32), jnp.uint32(3)).astype(jnp.int32),
        lambda _, n: n // 3,
    ),
    "squares": lambda m, _, n: m.square(n),
    "halves away from zero": (
        lambda _, n: lax.round((n - 15) / 2, lax.RoundingMethod.AWAY_FROM_ZERO),
        lambda _, n: np.trunc((n - 15) / 2 + np.copysign(0.5, n - 15)),
    ),
    "chosen by a number": (
        lambda x, n: lax.select_n(n % 2, x, -x),
        lambda x, n: np.where(n % 2, -x, x),
    ),
    "whole powers": (
        lambda x, n: lax.pow(abs(x) + 1, n % 4),
        lambda x, n: (abs(x) + 1) ** (n % 4),
    ),
    "powers of two": (lambda x, _: lax.exp2(x), lambda x, _: np.exp2(x)),
    "step by step": (
        lambda x, n: lax.fori_loop(2, 5, lambda i, v: v * 2 + n * i, x),
        lambda x, n: x * 8 + n * (2 * 4 + 3 * 2 + 4),
    ),
    "where rows are": (
        lambda x, n: jnp.where(jnp.broadcast_to(n[:1] > 9, SHAPE), x, 0),
        lambda x, n: np.where(np.broadcast_to(n[:1] > 9, SHAPE), x, 0),
    ),
    "transposed": lambda m, x, _: m.transpose(x),
    "of bytes": (
        lambda _, n: (n % 16).astype(jnp.int8).astype(jnp.float32) / 2,
        lambda _, n: (n % 16) / 2,
    ),
    "smallest in rows": lambda m, x, _: m.argmin(x, axis=1).astype(m.int32)[None],
    "padded": lambda m, x, _: m.pad(x, ((0, 8), (0, 0)), constant_values=2.5),
}


def test_rarer_forms(subtests: pytest.Subtests) -> None:
    """Numbers where others are usual: exponents that are whole, and choices by them."""
    check(subtests, RARER, floats(), integers(1, 31, 1), rtol=1e-4)


def test_exported(subtests: pytest.Subtests) -> None:
    """A kernel that is exported computes the same, with what older releases of libtpu have, too."""
    x, n = floats(), integers(1, 31, 1)
    fn, oracles = kernel_of(RARER, x, n)
    exported, text = printed(fn, x, n, exported=True)
    assert exported.mlir_module().count("@tpu_custom_call") == 1
    likes = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in oracles]
    results = computed(text, (x, n), likes)
    for name, oracle, result in zip(RARER, oracles, results, strict=True):
        with subtests.test(operation=name):
            close(result, oracle, 1e-4)


def test_booleans(subtests: pytest.Subtests) -> None:
    """A comparison of booleans is another formula of them; in memory they are numbers."""
    x, y = integers(0, 2, 0) > 0, integers(0, 2, 1) > 0
    operations: Operations = {
        **{
            name: lambda m, x, y, n=name: m.where(getattr(m, n)(x, y), 1, 0)
            for name in (*COMPARISONS, "logical_and", "logical_or", "logical_xor")
        },
        "not": lambda m, x, _: m.where(~x, 1, 0),
        "as floats": lambda m, x, y: x.astype(m.float32) - y.astype(m.float32),
        "as bytes": lambda m, x, _: x.astype(m.int8),
        "all": lambda m, x, y: m.where(m.all(x | y, axis=0), 1, 0),
        "any": lambda m, x, y: m.where(m.any(x & y, axis=1, keepdims=True), 1, 0),
        "row": lambda m, x, y: m.where(m.broadcast_to(x[:1], (8, 128)), 1, 0),
        "kept": lambda m, x, y: x,
    }
    check(subtests, operations, x, y)


def test_bfloat16(subtests: pytest.Subtests) -> None:
    """Each result is that of float32, rounded."""
    x, y = (floats(seed).astype(jnp.bfloat16) for seed in (0, 1))

    def of(fn: Function) -> tuple[Function, Function]:
        return (
            lambda x, y: fn(jnp, x, y).astype(jnp.float32),
            lambda x, y: (
                np.asarray(fn(np, x.astype(np.float32), y.astype(np.float32)))
                .astype(jnp.bfloat16)
                .astype(np.float32)
            ),
        )

    operations = {
        "add": of(lambda m, x, y: x + y),
        "maximum": of(lambda m, x, y: m.maximum(x, y)),
        "less": of(lambda m, x, y: m.where(x < y, x, y)),
        "product": of(lambda m, x, y: x * y),
        "negative": of(lambda m, x, y: -x),
        "exp": of(lambda m, x, y: m.exp(x)),
        "as integers": (lambda x, _: x.astype(jnp.int32), lambda x, _: x.astype(np.int32)),
        "as booleans": (
            lambda x, _: jnp.where(x.astype(jnp.bool_), 1, 0),
            lambda x, _: np.where(x != 0, 1, 0),
        ),
        "maximum of all": of(lambda m, x, y: m.max(x, axis=1, keepdims=True)),
    }
    check(subtests, operations, x, y, rtol=2**-7)


def test_shapes(subtests: pytest.Subtests) -> None:
    x, cube = floats(), floats(1, (4, 8, 128))
    choice = np.random.default_rng(3).integers(0, 8, SHAPE).astype(np.int32)
    operations: dict[str, Any] = {
        "row": lambda m, x, *_: m.broadcast_to(x[1:2], (8, 128)),
        "column": lambda m, x, *_: m.broadcast_to(x[:, 5:6], (8, 128)),
        "number": lambda m, x, *_: m.full((8, 128), x[0, 0]),
        "new dimension": lambda m, x, *_: m.broadcast_to(x[:, None, :], (8, 4, 128)),
        "transposed": lambda m, x, *_: x.T,
        "each transposed": lambda m, _, cube, __: m.transpose(cube, (0, 2, 1)),
        "permuted": lambda m, _, cube, __: m.transpose(cube, (1, 0, 2)),
        "flattened": lambda m, _, cube, __: cube.reshape(32, 128),
        "joined": lambda m, x, cube, _: m.concatenate([x, cube[1], x + 1], axis=0),
        "side by side": lambda m, x, *_: m.concatenate([x, x + 1], axis=1),
        "split": lambda m, _, cube, __: m.split(cube, 2, axis=0)[1] - m.split(cube, 2, axis=0)[0],
        "slice": lambda m, _, cube, __: cube[1:3, 2:6],
        "single": lambda m, _, cube, __: cube[2],
        "padded": lambda m, x, *_: m.pad(x, ((8, 16), (0, 128)), constant_values=3.5),
        "rows": lambda m, x, _, choice: m.take_along_axis(x, choice, 0),
        "columns": lambda m, x, _, choice: m.take_along_axis(x, choice, 1),
        "sum of columns": lambda m, x, *_: m.sum(x, axis=0, keepdims=True),
        "sum of rows": lambda m, x, *_: m.sum(x, axis=1, keepdims=True),
        "sum of blocks": lambda m, _, cube, __: m.sum(cube, axis=0),
        "sum": lambda m, x, *_: m.sum(x),
        "least": lambda m, x, *_: m.min(x, axis=0, keepdims=True),
        "greatest": lambda m, x, *_: m.max(x),
        "place of the greatest": lambda m, x, *_: m.argmax(x, axis=1).astype(m.int32)[None],
        "place of the least": lambda m, x, *_: m.argmin(x, axis=1).astype(m.int32)[None],
        "greatest integer": lambda m, _, __, choice: m.max(choice, axis=1, keepdims=True),
        "least integer": lambda m, _, __, choice: m.min(choice, axis=1, keepdims=True),
        "sum of integers": lambda m, _, __, choice: m.sum(choice, axis=0, keepdims=True).astype(
            m.int32
        ),
        "numbers of rows": (
            lambda *_: lax.broadcasted_iota(np.int32, (8, 128), 0),
            lambda *_: np.indices(SHAPE)[0].astype(np.int32),
        ),
        "numbers of columns": (
            lambda *_: lax.broadcasted_iota(np.int32, (8, 128), 1),
            lambda *_: np.indices(SHAPE)[1].astype(np.int32),
        ),
        "numbers": lambda m, *_: m.arange(128, dtype=m.int32)[None],
        "rolled": (lambda x, *_: pltpu.roll(x, 3, 1), lambda x, *_: np.roll(x, 3, 1)),
        "rolled by a number": (
            lambda x, _, choice: pltpu.roll(x, choice[0, 0], 0),
            lambda x, _, choice: np.roll(x, choice[0, 0], 0),
        ),
        "rolled further in each row": (
            lambda x, *_: pltpu.roll(x, 1, 1, stride=2, stride_axis=0),
            lambda x, *_: np.stack([np.roll(row, 1 + 2 * n) for n, row in enumerate(x)]),
        ),
        "halves as integers": (
            lambda x, *_: pltpu.bitcast(x.astype(jnp.bfloat16), jnp.int16).astype(np.int32),
            lambda x, *_: x.astype(jnp.bfloat16).view(np.int16).astype(np.int32),
        ),
        "integers of two halves": (
            lambda x, *_: pltpu.bitcast(x.astype(jnp.bfloat16), jnp.int32),
            lambda x, *_: (
                x.astype(jnp.bfloat16)
                .view(np.uint16)[0::2]
                .astype(np.int64)
                .__or__(x.astype(jnp.bfloat16).view(np.uint16)[1::2].astype(np.int64) << 16)
                .astype(np.uint32)
                .view(np.int32)
            ),
        ),
    }
    if hasattr(pltpu, "repeat"):  # JAX before 0.12
        operations |= {
            "repeated": (
                lambda x, *_: pltpu.repeat(x[:, :1] + jnp.zeros_like(x), 3, 1),
                lambda x, *_: np.repeat(x[:, :1], 384, 1),
            )
        }
    check(subtests, operations, x, cube, choice)


def rounded(x: Any) -> Any:
    return x.astype(jnp.bfloat16)


def test_products(subtests: pytest.Subtests) -> None:
    x, y = floats(0, (16, 128)), floats(1, (128, 256))
    batch = floats(2, (4, 16, 128))

    def product(dimensions: Any, *, other: Function = lambda x: x, **options: Any) -> Function:
        return lambda a, b: lax.dot_general(
            other(a), other(b), dimensions, preferred_element_type=np.float32, **options
        )

    plain = (((1,), (0,)), ((), ()))
    operations: dict[str, Any] = {
        "plain": lambda m, x, y, _: m.dot(x, y),
        "second transposed": lambda m, x, y, _: m.einsum("ab,cb->ac", x, y.T),
        "first transposed": lambda m, x, y, _: m.einsum("ba,bc->ac", x.T, y),
        "of rows": (lambda x, *_: product((((1,), (1,)), ((), ())))(x, x), lambda x, *_: x @ x.T),
        "with a row": (
            lambda x, *_: product((((1,), (1,)), ((), ())))(x, x[:1]),
            lambda x, *_: x @ x[:1].T,
        ),
        "a row of halves with itself": (
            lambda x, *_: product((((1,), (1,)), ((), ())), other=rounded)(x[:1], x[:1]),
            lambda x, *_: rounded(x[:1]).astype(np.float32) @ rounded(x[:1]).astype(np.float32).T,
        ),
        "each of a batch": (
            lambda x, _, batch: product((((2,), (2,)), ((0,), (0,))))(batch, batch),
            lambda x, _, batch: batch @ batch.swapaxes(1, 2),
        ),
        "of halves": (
            lambda x, y, _: product(plain, other=rounded)(x, y),
            lambda x, y, _: rounded(x).astype(np.float32) @ rounded(y).astype(np.float32),
        ),
        "exact": (
            lambda x, y, _: product(plain, precision=lax.Precision.HIGHEST)(x, y),
            lambda x, y, _: x @ y,
        ),
        "of integers": (
            lambda x, y, _: lax.dot_general(
                x.astype(jnp.int8), y.astype(jnp.int8), plain, preferred_element_type=np.int32
            ),
            lambda x, y, _: x.astype(np.int32) @ y.astype(np.int32),
        ),
    }
    if hasattr(pl, "dot"):  # JAX before 0.12
        for first in (False, True):
            for second in (False, True):
                operations |= {
                    f"pl.dot {first} {second}": (
                        lambda x, y, _, a=first, b=second: pl.dot(
                            x.T if a else x, y.T if b else y, trans_a=a, trans_b=b
                        ),
                        lambda x, y, _: x @ y,
                    )
                }
    check(subtests, operations, x, y, batch, rtol=1e-3)


def test_product_of_halves_with_a_row(subtests: pytest.Subtests) -> None:
    """Each row of a matrix times one row, of bfloat16, summed in float32."""
    x, y = (
        floats(seed, shape).astype(jnp.bfloat16) for seed, shape in ((0, (16, 128)), (1, (1, 128)))
    )
    columns = (((1,), (1,)), ((), ()))
    operation = (
        lambda x, y: lax.dot_general(x, y, columns, preferred_element_type=np.float32),
        lambda x, y: x.astype(np.float32) @ y.astype(np.float32).T,
    )
    check(subtests, {"product": operation}, x, y, rtol=1e-3)
