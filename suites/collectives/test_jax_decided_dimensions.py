"""What JAX decides of symbolic dimensions by their constraints, and which ones no size meets."""

from __future__ import annotations

from itertools import product

import jax
import pytest
from jax import export

from suites.shared.jax_releases import since_0_5

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("1"),
    pytest.mark.upstream("jax-ml/jax#40830"),
    since_0_5,
]
# For each set of constraints, comparisons that follow from it: one is decided, and so is its
# opposite. Sizes from 1 to 24 are the oracle that they do follow.
DECIDED: dict[tuple[str, ...], tuple[str, ...]] = {
    (): ("a >= 1", "a + b >= 2", "a + 1 > 1", "2 * a + 3 * b >= 5", "a * b >= 1", "a - 1 >= 0"),
    ("a >= 3",): (
        "a >= 3",
        "a > 2",
        "2 * a >= 6",
        "a + b >= 4",
        "1 - a <= -2",
        "a != 2",
        "3 - a <= 0",
    ),
    ("a <= 7",): ("a <= 7", "a < 8", "3 * a <= 21", "a - b <= 6", "b - a >= -6", "7 - a >= 0"),
    ("a >= 3", "a <= 7"): ("a * 2 <= 14", "a - 3 >= 0", "4 * a - 12 >= 0", "a // 2 <= 3", "a != 9"),
    ("a == 4",): ("a == 4", "a >= 4", "a <= 4", "a + b >= 5", "a != 5", "2 * a == 8"),
    ("b >= 2*a",): ("b >= 2 * a", "b - a >= 1", "b > a", "b >= 2", "3 * b - 6 * a >= 0"),
    ("b >= 2*a", "a >= 3"): ("b >= 6", "a + b >= 9", "b - a >= 3", "2 * b - a >= 9"),
    ("a + b <= 10",): ("a + b <= 10", "a <= 9", "b <= 9", "2 * a + 2 * b <= 20", "a + b != 11"),
    ("a + b <= 10", "b >= a"): ("2 * a <= 10", "a <= 5", "b - a >= 0"),
    ("a == 2*b",): ("a == 2 * b", "a >= 2", "a - 2 * b == 0", "a > b", "a >= b + 1"),
    ("a == 2*b", "b >= 5"): ("a >= 10", "a + b >= 15", "a - b >= 5"),
    ("mod(a, 4) == 0",): ("a % 4 == 0", "a % 4 < 4", "b % 4 >= 0", "b % 5 <= 4"),
    ("floordiv(a, 3) >= 2",): ("a // 3 >= 2", "a >= 6"),
    ("a >= b",): ("max(a, b) == a", "min(a, b) == b", "a - b >= 0", "2 * a >= 2 * b", "a + 1 > b"),
    ("a*b <= 12",): ("a * b <= 12", "a * b != 13", "2 * a * b <= 24"),
    ("max(a, b) <= 6",): ("max(a, b) <= 6", "max(a, b) >= 1"),
}
EXCLUDED: tuple[tuple[str, ...], ...] = (
    *(("a >= 3", "a <= 2"), ("a == 3", "a >= 4"), ("a == 3", "a == 4"), ("a == b", "a >= b + 1")),
    *(("b >= 2*a", "b <= 2*a - 1"), ("a == 2*b", "a == 2*b + 1"), ("a <= 0",), ("a + b <= 1",)),
)
OPPOSITE = {">=": "<", "<=": ">", ">": "<=", "<": ">=", "==": "!=", "!=": "=="}
NAMES = {
    "max": lambda a, b: jax.core.max_dim(a, b) if export.is_symbolic_dim(a) else max(a, b),
    "min": lambda a, b: jax.core.min_dim(a, b) if export.is_symbolic_dim(a) else min(a, b),
    "mod": lambda a, b: a % b,
    "floordiv": lambda a, b: a // b,
}


def value(text: str, a: object, b: object) -> bool:
    """Return whether the comparison holds, of integers or as JAX decides it."""
    return bool(eval(text, NAMES, {"a": a, "b": b}))  # noqa: S307, of this file


def decide(constraints: tuple[str, ...]) -> bool:
    """Ask JAX something of dimensions with these constraints."""
    a, b = export.symbolic_shape("a, b", constraints=constraints)
    return value("a + b >= 2", a, b)


def test_decided(subtests: pytest.Subtests) -> None:
    jax.devices()
    for constraints, comparisons in DECIDED.items():
        sizes = [
            (a, b)
            for a, b in product(range(1, 25), repeat=2)
            if all(value(constraint, a, b) for constraint in constraints)
        ]
        assert sizes
        a, b = export.symbolic_shape("a, b", constraints=constraints)
        for text in comparisons:
            left, operator, right = next(
                text.partition(f" {op} ") for op in OPPOSITE if f" {op} " in text
            )
            with subtests.test(constraints=constraints, comparison=text):
                assert all(value(text, *size) for size in sizes), "no consequence"
                assert value(text, a, b)
                assert not value(f"{left} {OPPOSITE[operator.strip()]} {right}", a, b)
    for constraints in EXCLUDED:
        with subtests.test(excluded=constraints), pytest.raises(ValueError, match="nsatisfiable"):
            decide(constraints)
