"""Compiles and runs random programs of JAX, in the executor."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from harness.fuzz.endings import described, different, first_line

SPOILING: Collection[str] = ()  # endings after which a process may compute other programs wrongly
OPTIMIZES = True  # a failure counts only if it also happens with LLVM's optimizations
_NOT_OPTIMIZED = {"xla_backend_optimization_level": 0}  # LLVM takes most of the time otherwise
_CACHED = 64  # programs
_SHARDY = "jax_use_shardy_partitioner"


def start() -> Mapping[str, Any]:
    """Return what devices there are, whether programs can have GSPMD, and the version."""
    import jax

    has_gspmd = hasattr(jax.config, _SHARDY)
    return {"devices": len(jax.devices()), "gspmd": has_gspmd, "version": jax.__version__}


def get_ready(number: int) -> None:
    """Drop compiled programs before the next one, whose number it is, if there are many."""
    import jax

    if number % _CACHED == 0:
        jax.clear_caches()


def ending(program: Mapping[str, Any], *, is_optimized: bool) -> Mapping[str, Any]:
    """Compile and run a program; return how it ended, and the StableHLO that XLA was given.

    With ``is_lowered_only`` it ends there.
    """
    import jax

    namespace: dict[str, Any] = {}
    with _partitioner(is_gspmd=program["is_gspmd"]):
        try:
            exec(compile(program["text"], "program", "exec"), namespace)  # noqa: S102 - it is ours
            lowered = namespace["program"]().lower(*namespace["GIVEN"])
            text = lowered.as_text()
        except Exception as error:
            is_typed = program["is_explicit"] and not isinstance(
                error, (AssertionError, LookupError)
            )
            is_missing = isinstance(error, NotImplementedError)  # such as the gradient of pmax
            kind = "unusable" if is_typed or is_missing else "not lowered"
            return described(kind, first_line(error))
        if program["is_lowered_only"]:
            return described("right", "", text)
        try:
            compiled = lowered.compile(None if is_optimized else _NOT_OPTIMIZED)
        except Exception as error:
            # Of a result that would have parts of different sizes, newer JAX wants to be told.
            is_uneven = type(error).__name__ == "IndivisibleError"
            return described("unusable" if is_uneven else "refused", first_line(error), text)
        try:
            given = jax.device_put(namespace["GIVEN"], list(compiled.input_shardings[0]))
            results = [np.asarray(result) for result in compiled(*given)]
        except Exception as error:
            return described("failed", first_line(error), text)
    detail = different(results, namespace["EXPECTED"])
    exchanged = _exchanged(compiled) if program["is_measured"] else 0
    return described("wrong" if detail else "right", detail, text, exchanged)


@contextlib.contextmanager
def _partitioner(*, is_gspmd: bool) -> Iterator[None]:
    import jax

    if not is_gspmd:
        yield
        return
    before = getattr(jax.config, _SHARDY)
    jax.config.update(_SHARDY, False)
    try:
        yield
    finally:
        jax.config.update(_SHARDY, before)


def _exchanged(compiled: Any) -> int:
    """Return the bytes that a device exchanges, as the compiled program says."""
    from harness.lanes.aot.optimized import read

    (module,) = compiled.runtime_executable().hlo_modules()
    return read(module.as_serialized_hlo_module_proto(), 1 << 20).bytes_inside
