"""Grouped matmul by TorchTPU: PyTorch's own operator, and JAX's kernel as one of PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import pytest
import torch

from harness.lanes.events import EventLog
from harness.model.topology import Target
from harness.session.fixtures import StartRuntime
from suites.multislice_flash_attention.grouped import (
    GROUPS,
    OUT,
    ROWS,
    TILING,
    assert_close,
    expected,
    expected_transposed,
    matrices,
)
from suites.multislice_flash_attention.in_pytorch import in_each_process

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.frameworks("torch_tpu"),
    pytest.mark.topologies("2x1"),
    pytest.mark.upstream("pytorch/xla#8334"),
]
SIZES = pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
Multiply = Callable[..., torch.Tensor]  # rows and matrices, and how many rows each group has


def by_pytorch(lhs: torch.Tensor, rhs: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    ends = sizes.cumsum(0).to(torch.int32)
    return torch.nn.functional.grouped_mm(lhs, rhs, offs=ends)


def by_kernel() -> Multiply:
    """JAX's kernel with its gradients; JAX is imported before any process is forked."""
    jax = pytest.importorskip("jax")
    from jax.experimental.pallas.ops.tpu.megablox.ops import gmm
    from torch_tpu._internal.pallas import jax_op

    def multiply(lhs: Any, rhs: Any, sizes: Any) -> Any:
        return gmm(lhs, rhs, sizes, lhs.dtype, TILING)

    def gradients(lhs: Any, rhs: Any, sizes: Any, do: Any) -> Any:
        return jax.vjp(lambda lhs, rhs: multiply(lhs, rhs, sizes), lhs, rhs)[1](do)

    # TorchTPU reads their annotations, and there is no module jax where this file is imported.
    of_array = dict.fromkeys(("lhs", "rhs", "sizes", "return"), jax.Array)
    multiply.__annotations__ = of_array
    two: Any = tuple.__class_getitem__((jax.Array, jax.Array))
    gradients.__annotations__ = of_array | {"do": jax.Array, "return": two}
    made: Any = jax_op("xla_harness::gmm", multiply)
    backward = jax_op("xla_harness::gmm_gradients", gradients)
    made.register_autograd(
        lambda ctx, do: (*backward(*ctx.saved_tensors, do), None),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    result: Multiply = made
    return result


MULTIPLY: dict[str, Callable[[], Multiply]] = {"pytorch": lambda: by_pytorch, "kernel": by_kernel}


@SIZES
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("by", MULTIPLY)
def test_step(  # noqa: PLR0913, PLR0917 - three of them are fixtures
    xla_target: Target,
    tpu_events: EventLog,
    start_runtime: StartRuntime,
    by: str,
    compiled: bool,
    groups: Sequence[int],
) -> None:
    """The rows of each group by its matrix, and the gradients of both."""
    multiply = MULTIPLY[by]()
    do = torch.randn(ROWS, OUT, generator=torch.Generator().manual_seed(1))

    def ask(device: str) -> list[torch.Tensor]:
        lhs, rhs, sizes = (tensor.to(device) for tensor in matrices(groups))
        lhs.requires_grad_()
        rhs.requires_grad_()
        called = torch.compile(multiply, backend="tpu", fullgraph=True) if compiled else multiply
        result = called(lhs, rhs, sizes)
        result.backward(do.to(device))
        assert lhs.grad is not None
        assert rhs.grad is not None
        return [tensor.detach().cpu() for tensor in (result, lhs.grad, rhs.grad)]

    processes = in_each_process(ask, xla_target, start_runtime)
    tpu_events.expect_discoveries(1)
    lhs, rhs = (tensor.double() for tensor in matrices(groups)[:2])  # not before the fork
    oracle = {
        "result": expected(lhs, rhs, groups),
        "gradient of rows": expected(do.double(), rhs.mT, groups),
        "gradient of matrices": expected_transposed(lhs, do.double(), groups),
    }
    for values in processes:
        for value, (name, right) in zip(values, oracle.items(), strict=True):
            assert_close(value, right, name)


@pytest.mark.parametrize("transposed", ["rows", "matrices"])
def test_other_layouts(xla_target: Target, start_runtime: StartRuntime, transposed: str) -> None:
    """Groups of the summed dimension, as a gradient has them, and of the result's columns."""
    groups = GROUPS["uneven"]
    ends = torch.tensor([*accumulate(groups)], dtype=torch.int32)
    lhs, rhs, _ = matrices(groups)
    other = torch.randn(ROWS, OUT, generator=torch.Generator().manual_seed(1))
    given = (lhs.mT, other) if transposed == "rows" else (rhs.mT, lhs.mT)

    def ask(device: str) -> torch.Tensor:
        operands = (tensor.to(device) for tensor in given)
        return torch.nn.functional.grouped_mm(*operands, offs=ends.to(device)).cpu()

    processes = in_each_process(ask, xla_target, start_runtime)
    oracle = (
        expected_transposed(lhs.double(), other.double(), groups)
        if transposed == "rows"
        else expected(lhs.double(), rhs.double(), groups).mT
    )
    for value in processes:
        assert_close(value, oracle, transposed)
