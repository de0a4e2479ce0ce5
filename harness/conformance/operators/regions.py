"""The text of regions: what reductions, sorts and scatters do with two elements."""

from __future__ import annotations

from harness.conformance.operators.element_types import COMPLEX, FLOATS, TYPES, UNSIGNED, tensor


def comparison_type(kind: str) -> str:
    """Return how numbers of an element type are compared."""
    if kind in FLOATS or kind in COMPLEX:
        return "FLOAT"
    return "UNSIGNED" if kind in UNSIGNED or kind == "pred" else "SIGNED"


def comparison(direction: str, how: str) -> str:
    """Return the attributes of a comparison."""
    return (
        f"comparison_direction = #stablehlo<comparison_direction {direction}>, "
        f"compare_type = #stablehlo<comparison_type {how}>"
    )


def compared(result: str, operands: tuple[str, str], direction: str, kind: str) -> str:
    """Return the line that compares two scalars."""
    text = tensor((), TYPES[kind])
    attributes = comparison(direction, comparison_type(kind))
    given = ", ".join(operands)
    return (
        f'{result} = "stablehlo.compare"({given}) {{{attributes}}} : ({text}, {text}) -> tensor<i1>'
    )


def folding(name: str, kind: str) -> str:
    """Return the region that applies an operator to two scalars."""
    text = tensor((), TYPES[kind])
    return f"""
      ^bb0(%x: {text}, %y: {text}):
        %z = "stablehlo.{name}"(%x, %y) : ({text}, {text}) -> {text}
        "stablehlo.return"(%z) : ({text}) -> ()
      """
