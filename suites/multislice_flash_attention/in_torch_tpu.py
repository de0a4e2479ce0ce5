"""JAX's kernels as TorchTPU calls them: functions of JAX that become operators of PyTorch.

TorchTPU reads their annotations, so these must be objects when a function is defined. A gradient is
an operator of its own, as TorchTPU's guide to custom operators has it.
"""

from typing import Any

import jax
import torch
from jax.experimental.pallas.ops.tpu.flash_attention import SegmentIds, flash_attention
from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention
from torch_tpu._internal.pallas import jax_op

from suites.multislice_flash_attention.problems import Problem, Tensors, segment_ids


def _flash(  # noqa: PLR0913, PLR0917 - an operator takes no mapping
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    bias: jax.Array | None,
    of_queries: jax.Array | None,
    of_keys: jax.Array | None,
    causal: bool,
    scale: float,
) -> jax.Array:
    segments = None if of_queries is None else SegmentIds(of_queries, of_keys)
    return flash_attention(q, k, v, bias, segments, causal=causal, sm_scale=scale)


def _flash_gradients(  # noqa: PLR0913, PLR0917 - as above
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    bias: jax.Array | None,
    of_queries: jax.Array | None,
    of_keys: jax.Array | None,
    do: jax.Array,
    causal: bool,
    scale: float,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array | None]:
    def attend(q: jax.Array, k: jax.Array, v: jax.Array, bias: jax.Array | None) -> jax.Array:
        return _flash(q, k, v, bias, of_queries, of_keys, causal, scale)

    return jax.vjp(attend, q, k, v, bias)[1](do)


def _paged(
    q: jax.Array, k: jax.Array, v: jax.Array, lengths: jax.Array, indices: jax.Array
) -> jax.Array:
    return paged_attention(q, k, v, lengths, indices, pages_per_compute_block=2)


class TorchTpu:
    """Operators of the namespace ``xla_harness``."""

    def __init__(self) -> None:
        self._flash = jax_op("xla_harness::flash", _flash)
        self._flash_gradients = jax_op("xla_harness::flash_gradients", _flash_gradients)
        self._flash.register_autograd(self._backward, setup_context=self._save)
        self._paged = jax_op("xla_harness::paged", _paged)

    def flash(self, problem: Problem, leaves: Tensors) -> torch.Tensor:
        segments: list[torch.Tensor | None] = [None, None]
        if problem.segments:
            lengths = problem.queries, problem.keys
            segments = [segment_ids(problem, n).to(leaves["q"].device) for n in lengths]
        tensors = (*(leaves[name] for name in "qkv"), leaves.get("bias"), *segments)
        result: torch.Tensor = self._flash(*tensors, problem.causal, problem.scale)
        return result

    def paged(self, *inputs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self._paged(*inputs)
        return result

    def _save(self, ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        del output
        *tensors, causal, scale = inputs
        ctx.save_for_backward(*tensors)
        ctx.options = causal, scale

    def _backward(self, ctx: Any, do: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        gradients = self._flash_gradients(*ctx.saved_tensors, do, *ctx.options)
        return (*gradients, None, None, None, None)
