"""Calls of Python in a kernel, in order with all that its core does.

JAX's TPU interpret mode keeps reads and writes of memory in order. Such a call is the read of a
buffer that does not exist, whose place in it is the function and what that takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

_BUFFER = -1  # which the interpreter gives to none


@dataclass(frozen=True)
class InPython:
    """What a kernel does by a call of Python.

    Attributes:
        function: takes the interpreter's memory, the device and the core, and what the operation
            takes; returns its result, or any integer for none.
    """

    function: Callable[..., Any]


@cache
def _register() -> None:
    import jax

    jax.tree_util.register_static(InPython)


def python_call(equation: Any, call: InPython) -> Any:
    """Return the equation of a call in the place of another one, which has a result or none."""
    import jax
    import numpy as np
    from jax._src import core
    from jax._src.state import primitives
    from jax._src.state.types import AbstractRef
    from jax.experimental.pallas import tpu

    _register()
    tree = jax.tree.structure((call, *equation.invars))
    nothing = core.ShapedArray((), np.dtype(np.int32))
    results = equation.outvars or [core.Var(nothing)]
    buffer = core.Literal(np.int16(_BUFFER), AbstractRef(nothing, tpu.SMEM))
    operands = [buffer, *equation.invars]
    return core.new_jaxpr_eqn(operands, results, primitives.get_p, {"tree": tree}, set())


def is_python(buffer: Any) -> bool:
    """Return whether a buffer that the interpreter reads stands for a call."""
    return buffer.ndim == 0 and int(buffer) == _BUFFER


def answer(memory: Any, place: Sequence[Any], operands: Sequence[Any]) -> Any:
    """Return what the read of a call gives, on a device's core."""
    call, *given = operands
    return call.function(memory, tuple(map(int, place)), *given)
