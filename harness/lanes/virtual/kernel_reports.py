"""Reports of a running Pallas kernel: lines that it prints, and values for a profile.

JAX's interpreters bind the primitive of either again, and have no lowering of it for the CPU.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

from harness.lanes.virtual.kernel_calls import InPython

_interpreting = threading.local()


def call_for(equation: Any) -> InPython | None:
    """Return what an equation calls if it prints."""
    if equation.primitive.name != "debug_print":
        return None
    return InPython(partial(_print, equation.params))


@contextmanager
def interpreting() -> Iterator[None]:
    """Interpret kernels that report something, in this thread.

    Where a kernel can't call Python, one that prints is refused with NotImplementedError.
    """
    _replace_binds()
    _interpreting.now = True
    try:
        yield
    finally:
        _interpreting.now = False


@cache
def _replace_binds() -> None:
    from jax._src import debugging
    from jax._src.pallas import primitives
    from jax._src.pallas.mosaic import primitives as of_tpu

    own = hasattr(primitives, "debug_print_p")  # later that of jax.debug.print
    _replace_bind((primitives if own else debugging).debug_print_p, _refuse_print)
    if hasattr(of_tpu, "trace_value_p"):  # since JAX 0.10
        # The profiles of a virtual TPU are empty.
        _replace_bind(of_tpu.trace_value_p, lambda *_, **__: [])


def _replace_bind(primitive: Any, function: Callable[..., Any]) -> None:
    theirs = primitive.bind

    def bind(*values: Any, **parameters: Any) -> Any:
        is_interpreting = getattr(_interpreting, "now", False)
        return (function if is_interpreting else theirs)(*values, **parameters)

    primitive.bind = bind


def _refuse_print(*_: Any, **__: Any) -> Sequence[Any]:
    raise NotImplementedError(
        "pl.debug_print, which needs JAX's TPU interpret mode (JAX 0.7.1 or later, a process that"
        " has all devices, no random keys): return the values and print them outside of the kernel"
    )


def _print(parameters: dict[str, Any], memory: Any, place: Any, *values: Any) -> Any:
    """Write to standard error, as a TPU's runtime does."""
    import numpy as np

    del memory, place
    fmt, given = parameters["fmt"], values
    if "in_tree" in parameters:  # some are constants
        from jax._src import debugging

        static = parameters["static_args"]
        given, _ = debugging.merge_callback_args(parameters["in_tree"], values, static)
    if parameters["has_placeholders"]:
        text = fmt.format(*(_literal(each) if np.ndim(each) else each for each in given))
    else:
        text = " ".join([fmt.rstrip(), *map(_literal, given)])
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
    return np.int32(0)


_KINDS = {"bfloat": "bf", "bool": "pred", "float": "f", "int": "s", "uint": "u"}


def _literal(value: Any) -> str:
    """Return an array as XLA writes a literal, which leaves out no element."""
    import numpy as np

    array = np.asarray(value)
    kind, bits = re.findall(r"[a-z]+|\d.*|$", array.dtype.name)[:2]
    element = _KINDS.get(kind, kind) + bits.replace("_", "")
    return f"{element}[{','.join(map(str, array.shape))}] {_elements(array)}"


def _elements(array: Any) -> str:
    if array.ndim == 0:
        return str(array).removesuffix(".0")
    lines = map(_elements, array)
    return f"{{{', '.join(lines)}}}" if array.ndim == 1 else "{\n" + ",\n".join(lines) + "\n}"
