"""JAX's kernels called from PyTorch over two slices: right numbers, and one discovery."""

from __future__ import annotations

import os

import pytest
import torch

from harness.lanes.events import EventLog
from harness.model.topology import Target
from harness.session.fixtures import StartRuntime
from suites.multislice_flash_attention import paged
from suites.multislice_flash_attention.in_pytorch import (
    attend,
    check_output,
    check_step,
    in_each_process,
    kernels_of,
    step,
)
from suites.multislice_flash_attention.problems import Problem

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.frameworks("torch_xla", "torch_tpu"),
    pytest.mark.topologies("2x1"),
    pytest.mark.upstream("pytorch/xla#8812", "pytorch/xla#8850"),
]
FORWARD = {
    "full": Problem(),
    "causal": Problem(causal=True),
    "full-bf16": Problem(dtype=torch.bfloat16),
    "causal-bf16": Problem(dtype=torch.bfloat16, causal=True),
}


@pytest.mark.long
def test_flash_attention(
    xla_target: Target,
    tpu_events: EventLog,
    start_runtime: StartRuntime,
    subtests: pytest.Subtests,
) -> None:
    kernels = kernels_of(xla_target)

    def ask(device: str) -> dict[str, dict[str, torch.Tensor]]:
        return {name: attend(kernels, problem, device) for name, problem in FORWARD.items()}

    processes = in_each_process(ask, xla_target, start_runtime)
    tpu_events.expect_discoveries(1)
    for name, problem in FORWARD.items():
        with subtests.test(name):
            check_output([values[name] for values in processes], problem)


@pytest.mark.long
def test_gradients(xla_target: Target, tpu_events: EventLog, start_runtime: StartRuntime) -> None:
    kernels, problem = kernels_of(xla_target), Problem(causal=True)
    processes = in_each_process(
        lambda device: step(kernels, problem, device), xla_target, start_runtime
    )
    tpu_events.expect_discoveries(1)
    check_step(processes, problem)


def test_later_steps(xla_target: Target, tpu_events: EventLog, start_runtime: StartRuntime) -> None:
    """A new size asks JAX again, and discovers nothing again; a known one compiles nothing."""
    kernels, sizes = kernels_of(xla_target), [1, 2, 1]

    def compilations() -> int:
        events = tpu_events.read()
        requests = [*events.of("compile"), *events.of("reuse")]
        return sum(event.process == os.getpid() for event in requests)

    def ask(device: str) -> list[tuple[dict[str, torch.Tensor], int]]:
        steps = []
        for size in sizes:
            before = compilations()
            values = attend(kernels, Problem(batch=size), device)
            steps.append((values, compilations() - before))
        return steps

    ranks = in_each_process(ask, xla_target, start_runtime)
    tpu_events.expect_discoveries(1)
    for number, size in enumerate(sizes):
        check_output([steps[number][0] for steps in ranks], Problem(batch=size))
    for measured in ranks:
        _, new, known = (count for _, count in measured)
        assert new > 0
        assert known == 0


def test_paged_attention(
    xla_target: Target, tpu_events: EventLog, start_runtime: StartRuntime
) -> None:
    cache, kernels = paged.Cache(), kernels_of(xla_target)

    def ask(device: str) -> torch.Tensor:
        return kernels.paged(*(tensor.to(device) for tensor in paged.inputs(cache))).cpu()

    for result in in_each_process(ask, xla_target, start_runtime):
        torch.testing.assert_close(result.double(), paged.expected(cache), **paged.TOLERANCE)
    tpu_events.expect_discoveries(1)
