"""JAX's kernels as a framework calls them, and a job whose processes do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

import pytest
import torch

from harness.job.ranks import run_ranks
from harness.model.topology import Target
from harness.session.fixtures import StartRuntime
from suites.multislice_flash_attention import problems
from suites.multislice_flash_attention.problems import Problem, Tensors
from suites.shared.backends import BACKENDS

Value = TypeVar("Value")


class Kernels(Protocol):
    """Kernels of JAX that a framework makes functions of tensors on its device of."""

    def flash(self, problem: Problem, leaves: Tensors) -> torch.Tensor:
        """Flash attention of the inputs that ``problems.inputs`` has; differentiable."""
        ...

    def paged(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Paged attention of what ``paged.inputs`` has."""
        ...


class TorchXla:
    """By torch_xla's own functions, which cover all devices from one process."""

    def flash(self, problem: Problem, leaves: Tensors) -> torch.Tensor:
        return problems.flash(problem, leaves)

    def paged(self, *inputs: torch.Tensor) -> torch.Tensor:
        from torch_xla.experimental.custom_kernel import paged_attention

        result: torch.Tensor = partial(paged_attention, pages_per_compute_block=2)(*inputs)
        return result


def kernels_of(target: Target) -> Kernels:
    """Return the kernels of the target's framework; import JAX before any process is forked.

    Skips the case without JAX, which TorchTPU does not require.
    """
    if target.framework == "torch_xla":
        return TorchXla()
    pytest.importorskip("jax")
    from suites.multislice_flash_attention.in_torch_tpu import TorchTpu

    return TorchTpu()


def in_each_process(
    ask: Callable[[str], Value], target: Target, start_runtime: StartRuntime, deadline: float = 50
) -> list[Value]:
    """Call ``ask`` in each process: one under torch_xla, one per chip under TorchTPU.

    Raises RankError if a process raises, or has not answered after ``deadline`` seconds.
    """
    if target.framework == "torch_xla":
        start_runtime(spmd=False)
        return [ask("xla")]
    backend = BACKENDS[target.framework]

    def rank(_: int) -> Value:
        device = backend.join()
        value = ask(device.type)
        backend.settle()
        return value

    return run_ranks(rank, target.topology, deadline=deadline)


def attend(kernels: Kernels, problem: Problem, device: str) -> dict[str, torch.Tensor]:
    """Compute the attention; return it on the host as "output"."""
    leaves = {name: tensor.to(device) for name, tensor in problems.inputs(problem).items()}
    return {"output": kernels.flash(problem, leaves).cpu()}


def step(kernels: Kernels, problem: Problem, device: str) -> dict[str, torch.Tensor]:
    """On the host: the attention as "output", and the gradient of each input by its name."""
    leaves = {
        name: tensor.to(device).requires_grad_(name != "do")
        for name, tensor in problems.inputs(problem).items()
    }
    result = kernels.flash(problem, leaves)
    result.backward(leaves.pop("do"))
    gradients = {name: leaf.grad.cpu() for name, leaf in leaves.items() if leaf.grad is not None}
    return {"output": result.detach().cpu(), **gradients}


def check_output(processes: Sequence[Tensors], problem: Problem) -> None:
    """Every process has the attention of the problem. Raises AssertionError."""
    output, _ = problems.expected(problem)
    _check(processes, {"output": output}, problem)


def check_step(processes: Sequence[Tensors], problem: Problem) -> None:
    """Every process has the attention and the gradients of the problem.

    Raises AssertionError, naming all that differ.
    """
    output, gradients = problems.expected(problem)
    _check(processes, {"output": output, **gradients}, problem)


def _check(processes: Sequence[Tensors], oracle: Tensors, problem: Problem) -> None:
    pairs = [
        (f"process {number}: {name}", values.get(name), value)
        for number, values in enumerate(processes)
        for name, value in oracle.items()
    ]
    problems.assert_all_close(pairs, problem.dtype)
