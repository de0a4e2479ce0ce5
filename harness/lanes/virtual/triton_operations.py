"""What only kernels for Triton have, computed: atomic operations, barriers, and some assembly.

JAX's own interpreter has some of the atomic operations, without masks.
"""

from __future__ import annotations

import re
from typing import Any

# One instruction of PTX, of which CUDA computes an approximation.
_APPROXIMATION = re.compile(r"\s*(\w+)\.approx(?:\.ftz)?\.\w+\s+\$0\s*,\s*\$1\s*;\s*")
_FUNCTIONS = {  # of jax.lax
    "cos": "cos",
    "ex2": "exp2",
    "rcp": "reciprocal",
    "rsqrt": "rsqrt",
    "sin": "sin",
    "sqrt": "sqrt",
    "tanh": "tanh",
}

_COMBINED_BY = {  # of jax.numpy; an exchange takes the new value
    "ADD": "add",
    "AND": "bitwise_and",
    "MAX": "maximum",
    "MIN": "minimum",
    "OR": "bitwise_or",
    "XOR": "bitwise_xor",
}


def compute(platform: str, module: Any) -> None:
    """Have a kernel's atomic operations, barriers and approximations computed.

    Args:
        platform: PJRT's name of the one whose kernels are interpreted.
        module: of JAX, which has some of these primitives, or all.
    """
    from jax._src.interpreters import mlir
    from jax._src.state import discharge

    primitives = vars(module)
    if "atomic_rmw_p" in primitives:
        discharge.register_discharge_rule(primitives["atomic_rmw_p"])(_atomic)
    if "debug_barrier_p" in primitives:  # an interpreted block has one thread
        mlir.register_lowering(primitives["debug_barrier_p"], lambda _: [])
    if "elementwise_inline_asm_p" in primitives:
        rule = mlir.lower_fun(_assembly, multiple_results=True)
        mlir.register_lowering(primitives["elementwise_inline_asm_p"], rule, platform=platform)


def _assembly(*arrays: Any, asm: str, result_shape_dtypes: Any, **_: Any) -> Any:
    from jax import lax

    match = _APPROXIMATION.fullmatch(asm)
    if match is None or match[1] not in _FUNCTIONS:
        raise NotImplementedError(f"assembly {asm!r}")
    (array,), (result,) = arrays, result_shape_dtypes
    return [getattr(lax, _FUNCTIONS[match[1]])(array).astype(result.dtype)]


def _atomic(
    in_avals: Any, out_avals: Any, *given: Any, args_tree: Any, atomic_type: Any
) -> tuple[Any, Any]:
    """Return what is in a reference after an operation on some of its elements, and was before.

    One element after the other, as they may be the same.
    """
    from jax import lax
    from jax import numpy as jnp
    from jax._src.state.discharge import transform_array

    del out_avals
    array, transforms, values, mask = args_tree.unflatten(given)
    numbers = jnp.arange(array.size, dtype="int32").reshape(array.shape)
    places = transform_array(numbers, transforms)
    shape = places.shape
    values = jnp.broadcast_to(values, shape).astype(array.dtype).ravel()
    chosen = jnp.broadcast_to(True if mask is None else mask, shape).ravel()
    name = _COMBINED_BY.get(atomic_type.name)
    places = places.ravel()

    def change(number: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
        flat, before = state
        place = places[number]
        old = flat[place]
        value = values[number]
        new = jnp.where(chosen[number], getattr(jnp, name)(old, value) if name else value, old)
        return flat.at[place].set(new), before.at[number].set(old)

    start = array.ravel(), jnp.zeros_like(values)
    flat, before = lax.fori_loop(0, places.size, change, start)
    return (flat.reshape(array.shape), *[None] * (len(in_avals) - 1)), before.reshape(shape)
