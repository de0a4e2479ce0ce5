"""What every plugin has to compile; whatever else it refuses is unsupported, and no failure.

The element types are those without which no program of JAX runs: comparisons, indices, its random
numbers' keys, and numbers. The operators are all but those that frameworks can do without, or that
have a form without them.
"""

from __future__ import annotations

TYPES = ("pred", "s32", "u32", "f32")
OPTIONAL = frozenset(
    (
        *("stablehlo.batch_norm_grad", "stablehlo.batch_norm_inference"),
        *("stablehlo.batch_norm_training", "stablehlo.cholesky", "stablehlo.fft"),
        *("stablehlo.map", "stablehlo.rng", "stablehlo.triangular_solve", "stablehlo.tuple"),
        *("stablehlo.get_tuple_element", "stablehlo.select_and_scatter"),
        *("stablehlo.dynamic_broadcast_in_dim", "stablehlo.dynamic_conv"),
        *("stablehlo.dynamic_gather", "stablehlo.dynamic_iota", "stablehlo.dynamic_pad"),
        *("stablehlo.dynamic_reshape", "stablehlo.real_dynamic_slice"),
        *("stablehlo.set_dimension_size", "stablehlo.uniform_quantize", "stablehlo.composite"),
    )
)


def is_required(operator: str, kind: str) -> bool:
    """Return whether a plugin has to have an operator of an element type."""
    return kind in TYPES and operator not in OPTIONAL and not operator.startswith("chlo.")
