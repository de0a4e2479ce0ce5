"""Pallas kernels for GPUs, which become what JAX makes of them for ``interpret=True``.

That is HLO of what a kernel does to values, a block after the other. What Mosaic GPU has besides,
such as barriers, copies and threads, only JAX's GPU interpret mode simulates: ``plgpu.kernel`` is
traced for it where JAX has it. Other kernels with these are refused by their names.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import wrapt

from harness.lanes import events
from harness.lanes.virtual import in_own_words, pallas, triton_operations
from harness.lanes.virtual.kernel_jaxprs import equations, jaxprs_of
from harness.lanes.virtual.lowering import rule_of

_simulated: list[Any] = []  # JAX's mode for kernels that name none themselves
_LIMIT = ". Lane gpu-aot compiles it"


def replace(platform: str) -> None:
    """Interpret the kernels that are lowered for the platform of that name, once JAX has them."""
    for call in ("pallas_call", "mpmd_map"):  # the second since JAX 0.10
        hook = partial(_interpret, platform, f"{call}_p")
        wrapt.register_post_import_hook(hook, f"jax._src.pallas.{call.removesuffix('_map')}")
    for module in ("jax._src.pallas.primitives", "jax._src.pallas.triton.primitives"):
        wrapt.register_post_import_hook(partial(triton_operations.compute, platform), module)
    wrapt.register_post_import_hook(_simulate, "jax._src.pallas.mosaic_gpu.core")


def _interpret(platform: str, call: str, module: Any) -> None:
    """Interpret each kernel that is lowered for the platform.

    Args:
        platform: PJRT's name of it.
        call: the name of the module's primitive that calls kernels.
        module: of JAX.
    """
    from jax._src.interpreters import mlir

    primitive = getattr(module, call)
    theirs = rule_of(mlir._lowerings[primitive])

    def rule(context: Any, *operands: Any, interpret: Any, **parameters: Any) -> Any:
        simulated = any(interpret is mode for mode in _simulated)
        if interpret and not simulated:  # as its author has asked for
            return theirs(context, *operands, interpret=interpret, **parameters)
        name = pallas.name_of(parameters)
        try:
            if not simulated and (beyond := _beyond_values(jaxprs_of(parameters))):
                raise NotImplementedError(f"{beyond} of Mosaic GPU")  # noqa: TRY301
            mode = interpret if simulated else True
            results = theirs(context, *operands, interpret=mode, **parameters)
        except Exception as error:
            why = in_own_words(pallas.why_not_interpreted(name, error, _LIMIT))
            raise pallas.CannotInterpretError(why) from error
        events.note("kernel", kernel=name, mode="gpu" if simulated else "hlo")
        return results

    mlir.register_lowering(primitive, rule, platform=platform)


def _simulate(module: Any) -> None:
    """Trace each ``plgpu.kernel`` for JAX's GPU interpret mode, unless it names a mode itself.

    Args:
        module: ``jax._src.pallas.mosaic_gpu.core``.
    """
    with suppress(ImportError):  # before JAX 0.10
        from jax._src.pallas.mosaic_gpu.interpret.params import InterpretGPUParams

        _simulated.append(InterpretGPUParams())
        wrapt.wrap_function_wrapper(module, "kernel", _trace)


def _trace(
    kernel: Callable[..., Any], _: object, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    if kwargs.get("interpret") is None:
        kwargs = kwargs | {"interpret": _simulated[0]}
    return kernel(*args, **kwargs)


def _beyond_values(jaxprs: Sequence[Any]) -> str:
    """Return the first primitive of Mosaic GPU's own that a kernel has; "" if it has none."""
    primitives = sys.modules.get("jax._src.pallas.mosaic_gpu.primitives")
    own = {id(value) for value in vars(primitives).values()} if primitives else set()
    every = (equation.primitive for jaxpr in jaxprs for equation in equations(jaxpr))
    return next((primitive.name for primitive in every if id(primitive) in own), "")
