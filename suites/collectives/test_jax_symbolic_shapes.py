"""Symbolic dimensions of JAX's exported programs: their arithmetic, what is decided, and refused.

Python's integers are the oracle: an expression of dimensions has to be that of integers at every
size, and a comparison that JAX decides has to hold at all sizes that the constraints allow.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from suites.shared.jax_releases import since_0_5

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("1"),
    pytest.mark.upstream("jax-ml/jax#40830"),
    pytest.mark.deadline(120),
    since_0_5,
]
SIZES = list(itertools.product(range(1, 12), range(1, 12)))
FUNCTIONS = {"floordiv": operator.floordiv, "mod": operator.mod, "max": max, "min": min}
REFUSALS = (
    *("InconclusiveDimensionOperation", "NotImplementedError", "TokenError"),
    *("TypeError", "ValueError"),
)
# Each is right of two integers and of two dimensions.
EXPRESSIONS: list[Callable[[Any, Any], Any]] = [
    lambda a, b: a + b,
    lambda a, b: a - b,
    lambda a, b: 3 - a + np.int64(2),
    lambda a, b: np.int32(4) * -a,
    lambda a, b: 2 * a - 3 * b + 1,
    lambda a, b: 0 + a * 1 + b * 0,
    lambda a, b: a * b - b * a,
    lambda a, b: (a + b) * (a - b) + b**2,
    lambda a, b: (a - 1) ** 3 * b,
    lambda a, b: a**0,
    lambda a, b: a // 2,
    lambda a, b: a % 2,
    lambda a, b: (a + b) // 3 - (a + b) % 3,
    lambda a, b: (a - 20) // 3 + (a - 20) % 3,
    lambda a, b: a // -3 + a % -3,
    lambda a, b: 50 // a,
    lambda a, b: 50 % a,
    lambda a, b: (a * b) // a,
    lambda a, b: (a * b + b) // b,
    lambda a, b: (4 * a + 8) // 4,
    lambda a, b: (4 * a + 7) // 4 + (4 * a + 7) % 4,
    lambda a, b: (a * a * b) // (a * b),
    lambda a, b: sum(divmod(a * b + 5, 3)),
    lambda a, b: sum(divmod(60, a + 1)),
    lambda a, b: a * b // (a + 1),
    lambda a, b: a // b,
    lambda a, b: a % b,
    lambda a, b: (a // 2) * (b // 2) ** 2,
    lambda a, b: (a % 3) * (b % 4) - a,
    lambda a, b: ((a + 3) // 2) // (b % 2 + 1),
]
TEXTS = [
    "max(a, b)",
    "min(a, b)",
    "max(a - 5, 0) + min(b, 4)",
    "mod(a*b, 4)",
    "floordiv(a*b + 2, 4)",
    "a^2 - b + -3 + 2*a*b^3",
    "- a + 20",
    "+ a + b",
    "max(min(a, 7), b*2)",
]


def holds(text: str, a: int, b: int) -> bool:
    """Return whether a constraint allows these sizes."""
    return bool(eval(text, FUNCTIONS, {"a": a, "b": b}))  # noqa: S307, of this file


def at(dimension: Any, a: int, b: int) -> int:
    """Return what the text of a dimension says at these sizes."""
    text = str(dimension).replace("^", "**")
    return int(eval(text, FUNCTIONS, {"a": a, "b": b}))  # noqa: S307, of this file


def arithmetic(subtests: pytest.Subtests) -> dict[tuple[int, int], list[int]]:
    """Check what the text of each expression says of sizes; return what integers give."""
    a, b = export.symbolic_shape("a, b")
    dimensions = [expression(a, b) for expression in EXPRESSIONS]
    read = [export.symbolic_shape(text, scope=a.scope)[0] for text in TEXTS]
    expected: dict[tuple[int, int], list[int]] = {}
    for sizes in SIZES:
        expected[sizes] = [expression(*sizes) for expression in EXPRESSIONS]
        expected[sizes] += [at(text, *sizes) for text in TEXTS]
    for number, dimension in enumerate([*dimensions, *read]):
        with subtests.test(dimension=str(dimension)):
            assert [at(dimension, *sizes) for sizes in SIZES] == [
                expected[sizes][number] for sizes in SIZES
            ]
            (again,) = export.symbolic_shape(str(dimension), scope=a.scope)
            assert again == dimension
            assert hash(again) == hash(dimension)
            assert (dimension == 7777, dimension != 7777) == (False, True)
    with subtests.test("equal"):
        assert (a + b) * 2 == 2 * b + 2 * a
        assert a != b
        assert a != export.symbolic_shape("a")[0], "another scope's"
        assert {a + 1: "a"}[1 + a] == "a"
        assert int(a - a + 4) == 4

    return expected


def test_computed(subtests: pytest.Subtests) -> None:
    """Each expression as a value, and some as sizes, in an exported program."""
    expected = arithmetic(subtests)

    def program(x: Any) -> Any:
        n, m = x.shape
        values = [expression(n, m) for expression in EXPRESSIONS]
        values += export.symbolic_shape(", ".join(TEXTS), scope=n.scope)
        sized = [jnp.zeros((n * m + 2 * n, max(n, 1)), jnp.int8), x[1:], x[:, ::2], x[-3:]]
        return jnp.stack([jnp.asarray(value, jnp.int32) for value in values]), sized

    dims = export.symbolic_shape("a, b")
    exported = export.export(jax.jit(program))(jax.ShapeDtypeStruct(dims, "float32"))
    for n, m in ((1, 1), (3, 4), (9, 2)):
        x = np.arange(n * m, dtype=np.float32).reshape(n, m)
        values, (zeros, *slices) = exported.call(x)
        with subtests.test(sizes=(n, m)):
            np.testing.assert_array_equal(values, expected[n, m])
            assert zeros.shape == (n * m + 2 * n, n)
            for got, own in zip(slices, (x[1:], x[:, ::2], x[-3:]), strict=True):
                np.testing.assert_array_equal(got, own)


def test_arithmetic_with_arrays() -> None:
    """What is no integer makes a dimension an array of the program, on either side."""

    def program(x: Any) -> Any:
        (a,) = x.shape
        i, f = jnp.int32(3), 2.5
        return [
            *(a + i, i + a, a - i, i - a, a * i, i * a, a // i, i // a, a % i, i % a),
            *(a + f, f + a, a - f, f - a, a * f, f * a, a // f, f // a, a % f, f % a),
            *(a / 2, 7 / a, 2**a, *divmod(a, i), *divmod(i, a), x.mean(), a * x),
        ]

    (a,) = export.symbolic_shape("a")
    exported = export.export(jax.jit(program))(jax.ShapeDtypeStruct((a,), "float32"))
    for n in (2, 7):
        x, i, f = np.arange(n, dtype=np.float32), 3, 2.5
        expected = [
            *(n + i, i + n, n - i, i - n, n * i, i * n, n // i, i // n, n % i, i % n),
            *(n + f, f + n, n - f, f - n, n * f, f * n, n // f, f // n, n % f, f % n),
            *(n / 2, 7 / n, 2**n, *divmod(n, i), *divmod(i, n), x.mean(), n * x),
        ]
        for number, (got, own) in enumerate(zip(exported.call(x), expected, strict=True)):
            np.testing.assert_allclose(got, own, rtol=1e-6, err_msg=f"number {number}")


def what_no_dimension_is(subtests: pytest.Subtests) -> None:
    """Check what is refused: operations, texts and constraints."""
    (a,), (other,) = export.symbolic_shape("a"), export.symbolic_shape("b")
    wrong: dict[str, Callable[[], Any]] = {
        "an integer": lambda: int(a),
        "a root": lambda: a**0.5,
        "a reciprocal": lambda: a**-1,
        "a list's length": lambda: [0] * a,
        "of two scopes": lambda: a + other,
        "product of two scopes": lambda: a * other,
        "compared over scopes": lambda: a >= other,
        "without an order": lambda: a >= 5,
        "of a shape": lambda: export.export(jax.jit(jnp.add))(
            *(jax.ShapeDtypeStruct((n,), "float32") for n in (a, other))
        ),
    }
    for name, operation in wrong.items():
        with subtests.test(name=name), pytest.raises(Exception) as refused:
            operation()
        assert type(refused.value).__name__ in REFUSALS
    texts = (
        "a b",
        "a +",
        "2a",
        "a, ",
        "(a",
        "a)",
        "a^b",
        "a^",
        "max(a)",
        "mod(a, 2",
        "1.5",
        "a / 2",
    )
    for text in ("*a", "_", "...", "a % 2", "!", "floordiv a", *texts):
        if text == "a, ":  # as Python's tuples have it
            assert len(export.symbolic_shape(text)) == 1
            continue
        with subtests.test(text=text), pytest.raises(Exception) as refused:
            export.symbolic_shape(text)
        assert type(refused.value).__name__ in REFUSALS
    for constraints in ("a >= 2", ("a > 2",), ("a",), (3,), ("2 == a",), ("a + 1 == 2",)):
        with subtests.test(constraints=constraints), pytest.raises(ValueError):
            export.symbolic_shape("a", constraints=constraints)
    with subtests.test("constraints of a scope"), pytest.raises(ValueError, match="both"):
        export.symbolic_shape("a", scope=a.scope, constraints=("a >= 2",))


def placeholders(subtests: pytest.Subtests) -> None:
    """Check that what a text leaves open is taken from the shape that it is like."""
    cases: dict[str | None, tuple[tuple[int, ...], str]] = {
        "a, _": ((3, 4), "a, 4"),
        "_, a, ...": ((3, 4, 5, 6), "3, a, 5, 6"),
        "...": ((3, 4), "3, 4"),
        "a, ...": ((3,), "a"),
        "(3, a)": ((3, 4), "3, a"),
        "": ((), ""),
        None: ((3, 4), "3, 4"),
    }
    for text, (like, expected) in cases.items():
        with subtests.test(text=text):
            got = export.symbolic_shape(text, like=like)
            assert ", ".join(str(dimension) for dimension in got) == expected
    for text, like in (("a, _", (3,)), ("4, a", (3, 3)), ("_", ()), ("a, b, ...", (3,))):
        with subtests.test(text=text, like=like), pytest.raises((ValueError, IndexError)):
            export.symbolic_shape(text, like=like)
    arrays = {
        "x": np.zeros((3, 4), np.int8),
        "y": [np.zeros(4, np.int32), jnp.zeros((4, 5), "bfloat16")],
    }
    trees: list[tuple[Any, tuple[str, ...]]] = [
        ({"x": "a, b", "y": "b, ..."}, ("(a, b)", "(b,)", "(b, 5)")),
        ({"x": None, "y": ["b", None]}, ("(3, 4)", "(b,)", "(4, 5)")),
        ("a, ...", ("(a, 4)", "(a,)", "(a, 5)")),
    ]
    for specs, shapes in trees:
        with subtests.test(specs=specs):
            given = export.symbolic_args_specs((arrays,), (specs,))
            leaves = jax.tree.leaves(given)
            assert jax.tree.structure(given) == jax.tree.structure((arrays,))
            assert tuple(str(leaf.shape) for leaf in leaves) == shapes
            assert [leaf.dtype for leaf in leaves] == ["int8", "int32", "bfloat16"]
            assert len({d.scope for leaf in leaves for d in leaf.shape if hasattr(d, "scope")}) == 1
    with subtests.test("another tree"), pytest.raises(ValueError):
        export.symbolic_args_specs((arrays,), ({"x": "a, b", "z": "b"},))


# Constraints, and for how many of the pairs below JAX at least knows whether one is the greater: a
# release that knows of fewer refuses programs that others export.
CONSTRAINTS: dict[tuple[str, ...], int] = {
    (): 191,
    ("a >= 4", "b <= 5"): 249,
    ("a >= b",): 208,
    ("a >= 2*b + 1", "b >= 2"): 297,
    ("mod(a, 2) == 0",): 198,
    ("b == 3",): 247,
    ("a == 2*b",): 274,
    ("a*b == 12",): 196,
    ("max(a, b) <= 6",): 196,
    ("a + b <= 9", "a - b >= 1"): 256,
    ("floordiv(a, 2) == b", "a >= 3"): 280,
}
COMPARED = (
    *("0", "5", "a", "b", "a + 1", "2*a", "a + b", "a - b", "a*b", "-2*a + 3"),
    *("max(a, b)", "min(a, b)", "mod(a, 3)", "2*floordiv(a, 2)", "a - 2*b", "floordiv(a, -2)"),
    *("mod(a, -3)", "mod(b, a)", "max(a, 3) - min(b, 2)", "floordiv(a, b)"),
)
COMPARISONS = (operator.ge, operator.gt, operator.le, operator.lt)


def decided(compare: Callable[[Any, Any], Any], left: Any, right: Any) -> bool | None:
    """Return the answer, or None if there is none for all sizes."""
    try:
        return bool(compare(left, right))
    except Exception as error:
        if type(error).__name__ == "InconclusiveDimensionOperation":
            return None
        raise


def decisions(subtests: pytest.Subtests) -> None:
    """Check that what is decided holds at all sizes that the constraints allow."""
    for constraints, known in CONSTRAINTS.items():
        sizes = [size for size in SIZES if all(holds(text, *size) for text in constraints)]
        dims = export.symbolic_shape(", ".join(COMPARED), constraints=constraints)
        values = [np.array([at(text, *size) for size in sizes]) for text in COMPARED]
        pairs = list(itertools.product(zip(COMPARED, dims, values, strict=True), repeat=2))
        wrong, answers = [], 0
        for (text, left, numbers), (other, right, others) in pairs:
            if left == right and (numbers != others).any():
                wrong.append(f"{text} == {other}")
            for compare in COMPARISONS:
                answer, true = decided(compare, left, right), compare(numbers, others)
                if answer is not None and (true != answer).any():
                    wrong.append(f"{text} {compare.__name__} {other}: {answer}")
            answers += decided(operator.ge, left, right) is not None
        with subtests.test(constraints=constraints):
            assert not wrong
            assert answers >= known


def test_dimensions(subtests: pytest.Subtests) -> None:
    """Their arithmetic, what is decided of them, what a text leaves open, and what is refused."""
    jax.devices()
    arithmetic(subtests)
    decisions(subtests)
    placeholders(subtests)
    what_no_dimension_is(subtests)


def test_indexed_by_a_dimension() -> None:
    """A dimension is an index as any other integer is."""
    exported = export.export(jax.jit(lambda x: x[x.shape[0] // 2] + x[x.shape[0] - 1]))(
        jax.ShapeDtypeStruct(export.symbolic_shape("a"), "float32")
    )
    for size in (3, 6):
        x = np.arange(size, dtype=np.float32)
        np.testing.assert_array_equal(exported.call(x), x[size // 2] + x[-1])
