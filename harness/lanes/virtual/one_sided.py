"""``psend`` and ``precv``, which XLA's CPU compiler lacks, as one permutation of the same pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_BARRIER, _PERMUTE = "stablehlo.optimization_barrier", "stablehlo.collective_permute"
_PAIRS = "source_target_pairs"
_CYCLE = "Expected send and recv instructions to have non-cyclical source-target pairs"


def permute(platform: str, parallel: Any) -> None:
    """Have a sender's token lead to what a receiver with the same pairs is given.

    What XLA's compiler for GPUs refuses is refused in its words, as
    https://github.com/openxla/xla/blob/main/xla/hlo/analysis/send_recv_matching.cc has them.

    Args:
        platform: whose lowering rules are replaced.
        parallel: ``jax._src.lax.parallel``; older ones have neither.
    """
    if not hasattr(parallel, "psend_p"):
        return
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir
    from jax._src.lib.mlir.dialects import hlo

    def among_all(context: Any, name: str, axis_name: Any, perm: Any) -> tuple[Any, Any]:
        pairs, others = parallel._pcollectives_lowering_common(
            context, axis_name=axis_name, perm=perm, op_name=name
        )
        return mlir.dense_int_elements(pairs), others

    def send(context: Any, array: Any, *, axis_name: Any, perm: Any) -> Any:
        pairs, others = among_all(context, "psend", axis_name, perm)
        if _is_cyclic(dict(perm)):
            raise _error(_CYCLE, perm)
        moved = hlo.CollectivePermuteOp(array, pairs, **others).result
        return [hlo.OptimizationBarrierOp([moved, hlo.create_token()]).results[1]]

    def receive(context: Any, token: Any, *, out_shape: Any, axis_name: Any, perm: Any) -> Any:
        moved = _sent(token)
        if moved is None:
            raise _error("Expected send to match recv", perm)
        pairs, _ = among_all(context, "precv", axis_name, perm)
        if moved.owner.operands[0].owner.attributes[_PAIRS] != pairs:
            raise _error("Deadlock detected. Last checked instructions: %psend", perm)
        if (shape := (*ir.ShapedType(moved.type).shape,)) != out_shape.shape:
            raise _error(f"psend of shape {shape} to a precv of shape {out_shape.shape}", perm)
        return [moved]

    mlir.register_lowering(parallel.psend_p, send, platform=platform, cacheable=False)
    mlir.register_lowering(parallel.precv_p, receive, platform=platform, cacheable=False)


def _sent(token: Any) -> Any:
    """Return what was sent with a token, also if it came through barriers; None for nothing."""
    while getattr(token.owner, "name", "") == _BARRIER:
        operand = token.owner.operands[0]
        if getattr(operand.owner, "name", "") == _PERMUTE and token.result_number == 1:
            return token.owner.results[0]
        token = token.owner.operands[token.result_number]
    return None


def _is_cyclic(targets: Mapping[int, int]) -> bool:
    for start in targets:
        place = start
        while (place := targets.get(place, -1)) not in (-1, start):
            pass
        if place == start:
            return True
    return False


def _error(text: str, pairs: Sequence[Any]) -> Any:
    from jax.errors import JaxRuntimeError

    return JaxRuntimeError(f"{text}: {[*map(tuple, pairs)]}")
