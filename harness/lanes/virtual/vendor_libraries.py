"""Lower as for a CPU what JAX has a vendor's library compute, such as cuSOLVER."""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any

import wrapt

from harness.lanes import events
from harness.lanes.virtual import (
    cudnn_attention,
    divided_calls,
    gpu_kernels,
    in_own_words,
    one_sided,
    scaled_products,
)
from harness.lanes.virtual.callbacks import STAND_IN_VARIABLE
from harness.lanes.virtual.lowering import rule_of
from harness.platforms import Platform

# What calls a library without a rule of lowering that the CPU has as well.
_WITHOUT_RULES = {
    "jax._src.cudnn.fused_attention_stablehlo": cudnn_attention.compute_by_reference,
    "jax._src.cudnn.scaled_matmul_stablehlo": scaled_products.compute_in_32_bits,
}
_ALGORITHMS = ("JACOBI", "POLAR", "CUSOLVER")  # in whose place LAPACK has its own
_EMIT = "emit_python_callback"
_PARTITIONED = (
    "a callback on each part of an array (partitioned=True) that is ordered, or returns something,"
    " can't be called here. Call it in jax.shard_map, or on the whole array"
)


def replace(platform: Platform) -> None:
    """Replace the platform's lowering rules that call its libraries, once JAX has registered them.

    Where the vendor's compiler is asked as well, it is given the calls.
    """
    if STAND_IN_VARIABLE in os.environ or not platform.calls_libraries:
        return
    for module, option in platform.calls_libraries.items():
        lower_as_cpu = partial(_lower_as_cpu, platform.pjrt_name, option)
        wrapt.register_post_import_hook(_WITHOUT_RULES.get(module, lower_as_cpu), module)
    gpu_kernels.replace(platform.pjrt_name)
    permute = partial(one_sided.permute, platform.pjrt_name)
    wrapt.register_post_import_hook(permute, "jax._src.lax.parallel")
    for module in ("jax._src.callback", "jax._src.interpreters.mlir"):  # the second before JAX 0.5
        wrapt.register_post_import_hook(_call_as_a_tpu, module)
    wrapt.register_post_import_hook(divided_calls.tell_devices, "jax._src.debugging")


def _lower_as_cpu(platform: str, option: str, module: Any) -> None:
    """Lower the module's primitives by the CPU's rule, or else by the rule for any platform.

    Args:
        platform: whose rules are replaced.
        option: of JAX's; if it is off, the platform's rule calls no library. "" for none.
        module: of JAX.
    """
    from jax._src.interpreters import mlir

    for_platform, for_cpu = (mlir._platform_specific_lowerings[name] for name in (platform, "cpu"))
    own = [p for p in vars(module).values() if isinstance(p, mlir.core.Primitive)]
    for primitive in own:
        rule = for_cpu.get(primitive, mlir._lowerings.get(primitive))
        if primitive in for_platform and rule is not None:
            theirs = rule_of(for_platform[primitive])
            chosen = _chosen(primitive.name, option, theirs, rule_of(rule))
            mlir.register_lowering(primitive, chosen, platform=platform)


def _chosen(
    name: str, option: str, theirs: Callable[..., Any], of_cpu: Callable[..., Any]
) -> Callable[..., Any]:
    def rule(context: Any, *operands: Any, **parameters: Any) -> Any:
        import jax

        if option and not getattr(jax.config, option):
            return theirs(context, *operands, **parameters)
        chosen = {key: each for key, each in parameters.items() if isinstance(each, Enum)}
        if "DIVIDE_AND_CONQUER" in {each.name for each in chosen.values()}:
            return theirs(context, *operands, **parameters)  # which refuses it
        events.note("rewrite", rewrite=f"{name} as on a CPU")
        own = {key: None for key, each in chosen.items() if each.name in _ALGORITHMS}
        return of_cpu(context, *operands, **parameters | own)

    return rule


def _call_as_a_tpu(module: Any) -> None:
    """Have programs call Python by sending to the host and receiving, which the plugin answers."""
    if hasattr(module, _EMIT):
        wrapt.wrap_function_wrapper(module, _EMIT, _emit_callback)


def _emit_callback(
    emit: Callable[..., Any], _: object, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    context, *others = args
    whole = context.module_context
    if len(whole.platforms) > 1 or whole.platforms[0] in ("cpu", "tpu"):
        return emit(*args, **kwargs)
    if kwargs.get("partitioned"):
        callback, token, operands, _, results = others
        if token or results:
            raise NotImplementedError(in_own_words(_PARTITIONED))
        divided_calls.call_on_each_part(context, callback, operands)
        return [], None, None
    return emit(context.replace(module_context=_ForTpu(whole)), *others, **kwargs)


class _ForTpu(wrapt.ObjectProxy[Any]):
    """Context of a module whose callbacks are lowered for a TPU, which alone has no handler."""

    platforms = ("tpu",)
