"""What a user runs on a TPU that makes torch_xla ask JAX for a kernel."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from suites.multislice_flash_attention.problems import (
    Problem,
    assert_all_close,
    assert_close,
    expected,
    flash,
    inputs,
    leaves_on_tpu,
    softmax_attention,
)
from suites.shared.execution import settle


def _forward(problem: Problem, **sharding: Any) -> None:
    leaves = {name: leaf.detach() for name, leaf in leaves_on_tpu(problem).items()}
    result = flash(problem, leaves, **sharding)
    assert_close(result, softmax_attention(problem, inputs(problem)), problem.dtype, "result")


def backward(**sharding: Any) -> None:
    """Both passes, traced and not executed: JAX before 0.6 can't interpret the second."""
    problem = Problem(batch=2)
    leaves = leaves_on_tpu(problem)
    flash(problem, leaves, **sharding).backward(leaves["do"])


def forward(**sharding: Any) -> None:
    """Flash attention, executed."""
    _forward(Problem(batch=2), **sharding)


def causal() -> None:
    """With the future masked out."""
    _forward(Problem(causal=True))


def segments() -> None:
    """With segment ids, traced: as backward()."""
    problem = Problem(segments=True)
    flash(problem, leaves_on_tpu(problem))


def bias() -> None:
    """With an additive bias."""
    _forward(Problem(bias=True))


def bfloat16() -> None:
    """Of the dtype that is trained in."""
    _forward(Problem(dtype=torch.bfloat16))


def paged() -> None:
    """Paged attention, traced."""
    from torch_xla.experimental.custom_kernel import paged_attention

    q, pages = torch.randn(1, 8, 128), torch.randn(1, 2, 16, 128)
    lengths, indices = torch.tensor([20]).int(), torch.tensor([[0, 1]]).int()
    paged_attention(*(t.to("xla") for t in (q, pages, pages, lengths, indices)), 1)


def of_ones_own() -> None:
    """Run a Pallas kernel that the user wrote."""
    from torch_xla.experimental.custom_kernel import jax_import_guard, make_kernel_from_pallas

    jax_import_guard()  # as upstream documents it: before JAX is imported
    add = make_kernel_from_pallas(_pallas_add(), lambda x, _: [(x.shape, x.dtype)])
    x, y = torch.randn(8, 128), torch.randn(8, 128)
    torch.testing.assert_close(add(x.to("xla"), y.to("xla")).cpu(), x + y)


def _pallas_add() -> Callable[[Any, Any], Any]:
    import jax
    from jax.experimental import pallas as pl

    def kernel(x: Any, y: Any, out: Any) -> None:
        out[...] = x[...] + y[...]

    return lambda x, y: pl.pallas_call(kernel, jax.ShapeDtypeStruct(x.shape, x.dtype))(x, y)


Beside = list[tuple[str, torch.Tensor | None, torch.Tensor]]  # name, value, oracle


def step(problem: Problem, **sharding: Any) -> Beside:
    """Forward and backward pass over fresh tensors, executed; each tensor beside the oracle's."""
    leaves = leaves_on_tpu(problem)
    result = flash(problem, leaves, **sharding)
    result.backward(leaves["do"])
    settle()
    out, gradients = expected(problem)
    of_inputs = [(f"gradient of {n}", leaves[n].grad, oracle) for n, oracle in gradients.items()]
    return [("output", result, out), *of_inputs]


def assert_step(problem: Problem, **sharding: Any) -> None:
    """Check that the tensors of a step are the oracle's."""
    assert_all_close(step(problem, **sharding), problem.dtype)


KERNELS: Mapping[str, Callable[[], None]] = {
    "flash": forward,
    "flash-backward": backward,
    "flash-causal": causal,
    "flash-segments": segments,
    "flash-bias": bias,
    "flash-bf16": bfloat16,
    "paged": paged,
    "own-kernel": of_ones_own,
}
