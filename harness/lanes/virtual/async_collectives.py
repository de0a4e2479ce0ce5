"""Rewrite asynchronous collectives and unreduced values of JAX, which XLA's CPU compiler lacks.

JAX writes a program in the StableHLO of the CPU's compiler, which has no operation that starts a
collective, and fails before the plugin sees it. Where that happens, the collective takes the place
of its start, and its results that of its end, which is the same to whoever reads them. Whole values
that become unreduced are divided. What XLA can't read beside operations of Shardy is written
without them. Where libtpu is asked as well, it is given the program as JAX has made it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import wrapt

from harness.lanes import events
from harness.lanes.virtual import in_own_words, newer_programs, unreduced
from harness.lanes.virtual.callbacks import STAND_IN_VARIABLE
from harness.lanes.virtual.lowering import operations
from harness.lanes.virtual.submitted import written_as
from harness.platforms import platform_here

_COMPILE = "backend_compile_and_load"
_CROSS = "_get_cross_compile_backend"
_TOO_NEW = "Failed to serialize StableHLO"
_UNREADABLE = "Failed to parse using StableHLO"
_REFUSAL = (
    "JAX writes programs in the StableHLO that XLA's CPU compiler reads, which has no"
    " such operation. Collectives that are done in the function that starts them run here; lane"
    " {}-aot asks the vendor's compiler"
)
_START, _DONE = "stablehlo.async_start", "stablehlo.async_done"


def accept(compiler: Any) -> None:
    """Let ``jax._src.compiler`` submit programs with what XLA's CPU compiler lacks."""
    if hasattr(compiler, _COMPILE):  # before JAX 0.7 there are none
        wrapt.wrap_function_wrapper(compiler, _COMPILE, _compile)
    if hasattr(compiler, _CROSS) and STAND_IN_VARIABLE in os.environ:
        # For a vendor's compiler JAX would start the virtual devices, to measure kernels on them.
        setattr(compiler, _CROSS, lambda _: None)


def _compile(
    compile_: Callable[..., Any], _: object, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    given = args[1] if len(args) > 1 else kwargs["module"]

    def compile_instead(module: Any) -> Any:
        if len(args) > 1:
            return compile_(args[0], module, *args[2:], **kwargs)
        return compile_(*args, **kwargs | {"module": module})

    module, original = given, b""
    if unreduced.is_any(given):
        module = newer_programs.copy_of(given)
        original = _original(given)
        _count("whole value made unreduced", unreduced.divide_whole_values(module))
    try:
        return _submit(compile_instead, module, original)
    except Exception as error:
        text = str(error).splitlines()
        if not text or _TOO_NEW not in text[0]:
            raise
        module = newer_programs.copy_of(module)
        original = original or _original(given)
        count = make_synchronous(module)
        if not count and not original:
            raise type(error)(
                f"{text[0]}\n{in_own_words(_REFUSAL.format(platform_here().name))}"
            ) from None
    _count("asynchronous collective", count)
    if not count:
        newer_programs.make_unknown(module)
    return _submit(compile_instead, module, original)


def _submit(compile_: Callable[[Any], Any], module: Any, original: bytes) -> Any:
    """Compile ``module`` in the place of the one that JAX has made, the artifact ``original``."""
    try:
        return _hand_over(compile_, module, original)
    except Exception as error:
        if _UNREADABLE not in str(error):
            raise
    original = original or _original(module)
    return _hand_over(compile_, newer_programs.in_stablehlo_alone(module), original)


def _hand_over(compile_: Callable[[Any], Any], module: Any, original: bytes) -> Any:
    if not original:
        return compile_(module)
    with written_as(original, newer_programs.mark(module, original)):
        return compile_(module)


def _original(module: Any) -> bytes:
    """Return the artifact that libtpu is given; nothing where it is not asked."""
    return newer_programs.artifact_of(module) if STAND_IN_VARIABLE in os.environ else b""


def _count(name: str, count: int) -> None:
    for _ in range(count):
        events.note("rewrite", rewrite=name)


def make_synchronous(module: Any) -> int:
    """Do each collective where it is started, in place.

    Args:
        module: of MLIR. One in which something else than its end takes what a start returns, as
            a loop may, is not changed.

    Returns:
        How many there were.
    """
    starts = [o for o in operations(module.operation) if o.name == _START]
    ends = {start: [use.owner for use in start.results[0].uses] for start in starts}
    if any(end.name != _DONE for of_start in ends.values() for end in of_start):
        return 0
    for start, of_start in ends.items():
        block = start.regions[0].blocks[0]
        for inner, outer in zip(block.arguments, start.operands, strict=True):
            inner.replace_all_uses_with(outer)
        *body, last = block.operations
        for operation in body:
            operation.operation.move_before(start)
        for end in of_start:
            for old, new in zip(end.results, last.operands, strict=True):
                old.replace_all_uses_with(new)
            end.operation.erase()
        start.erase()
    return len(starts)
