"""Reports of a running Pallas kernel: lines that it prints, and values for a profile.

JAX's interpreters bind the primitive of either again, and have no lowering of it for the CPU.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

_interpreting = threading.local()


@contextmanager
def interpreting(*, prints: bool) -> Iterator[None]:
    """Interpret kernels that report something, in this thread.

    Args:
        prints: whether a kernel can call Python; without it, one that prints is refused with
            NotImplementedError.
    """
    _replace_binds()
    _interpreting.prints = prints
    try:
        yield
    finally:
        _interpreting.prints = None


@cache
def _replace_binds() -> None:
    from jax._src import debugging
    from jax._src.pallas import primitives
    from jax._src.pallas.mosaic import primitives as of_tpu

    own = hasattr(primitives, "debug_print_p")  # later that of jax.debug.print
    _replace_bind((primitives if own else debugging).debug_print_p, _bind_print)
    if hasattr(of_tpu, "trace_value_p"):  # since JAX 0.10
        # The profiles of a virtual TPU are empty.
        _replace_bind(of_tpu.trace_value_p, lambda *_, **__: [])


def _replace_bind(primitive: Any, function: Callable[..., Any]) -> None:
    theirs = primitive.bind

    def bind(*values: Any, **parameters: Any) -> Any:
        is_interpreting = getattr(_interpreting, "prints", None) is not None
        return (function if is_interpreting else theirs)(*values, **parameters)

    primitive.bind = bind


def _bind_print(*values: Any, **parameters: Any) -> Sequence[Any]:
    from jax.experimental import io_callback

    if not _interpreting.prints:
        raise NotImplementedError(
            "pl.debug_print, which needs JAX's TPU interpret mode (JAX 0.7.1 or later, a process"
            " that has all devices, no random keys): return the values and print them outside of"
            " the kernel"
        )
    io_callback(partial(_print, parameters), (), *values, ordered=True)
    return []


def _print(parameters: dict[str, Any], *values: Any) -> tuple[()]:
    """Write to standard error, as a TPU's runtime does."""
    fmt, given = parameters["fmt"], values
    if "in_tree" in parameters:  # some are constants
        from jax._src import debugging

        static = parameters["static_args"]
        given, _ = debugging.merge_callback_args(parameters["in_tree"], values, static)
    placed = parameters["has_placeholders"]
    text = fmt.format(*given) if placed else " ".join([fmt, *map(str, given)])
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
    return ()
