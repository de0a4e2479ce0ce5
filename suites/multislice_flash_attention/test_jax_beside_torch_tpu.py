"""JAX and TorchTPU in one process of a multi-slice job: the later one must not discover again.

TorchTPU sets ``SKIP_MEGASCALE_PJRT_CLIENT`` once its own client has discovered the slices, in the
environment that C code reads. JAX comes later when a kernel is called, or when the user runs it.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from harness.job.ranks import run_ranks
from harness.lanes.events import EventLog
from harness.model.topology import Target
from suites.multislice_flash_attention.in_pytorch import attend, check_output, kernels_of
from suites.multislice_flash_attention.problems import Problem, inputs
from suites.shared.backends import BACKENDS

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.frameworks("torch_tpu"),
    pytest.mark.topologies("2x1"),
    pytest.mark.upstream("pytorch/xla#8812", "pytorch/xla#8954"),
]
GUARD = "SKIP_MEGASCALE_PJRT_CLIENT"
PROBLEM = Problem(causal=True)


@pytest.fixture(autouse=True)
def needs_jax() -> None:
    """TorchTPU does not require it; imported here, it is not imported by each rank."""
    pytest.importorskip("jax")


def compute_by_jax() -> float:
    """Compute the sum of 0 to 7 on JAX's first device."""
    import jax.numpy as jnp

    return float(jnp.arange(8.0).sum())


def reduce_by_torch_tpu() -> float:
    """Compute the number of ranks by an all-reduce of ones."""
    x = torch.ones(1, device="tpu")
    dist.all_reduce(x)
    return x.item()


def clients(tpu_events: EventLog) -> dict[int, list[tuple[str, str | None]]]:
    """Of each process: which library created a client, and the guard that it had then."""
    creators: dict[int, list[tuple[str, str | None]]] = {}
    for client in tpu_events.read().of("client"):
        creators.setdefault(client.process, []).append((client.by, client.guard))
    return creators


def test_kernel_creates_a_guarded_client(xla_target: Target, tpu_events: EventLog) -> None:
    """JAX asks for its devices when it traces a kernel, whatever device it traces for."""
    kernels, backend = kernels_of(xla_target), BACKENDS["torch_tpu"]

    def ask(_: int) -> dict[str, torch.Tensor]:
        device = backend.join()
        values = attend(kernels, PROBLEM, device.type)
        backend.settle()
        return values

    results = run_ranks(ask, xla_target.topology)
    tpu_events.expect_discoveries(1)
    assert list(clients(tpu_events).values()) == [[("torch_tpu", None), ("jax", "true")]] * 2
    check_output(results, PROBLEM)


@pytest.mark.parametrize("value", [None, "false", ""], ids=["unset", "false", "empty"])
def test_jax_after(xla_target: Target, tpu_events: EventLog, value: str | None) -> None:
    """Both compute, and the user's variable is as it was where Python reads it."""
    backend = BACKENDS["torch_tpu"]

    def ask(_: int) -> tuple[float, float, float, str | None]:
        if value is not None:
            os.environ[GUARD] = value
        backend.join()
        results = reduce_by_torch_tpu(), compute_by_jax(), reduce_by_torch_tpu()
        backend.settle()
        return *results, os.environ.get(GUARD)

    assert run_ranks(ask, xla_target.topology) == [(2, 28, 2, value)] * 2
    tpu_events.expect_discoveries(1)
    assert list(clients(tpu_events).values()) == [[("torch_tpu", value), ("jax", "true")]] * 2


@pytest.mark.environment(SKIP_MEGASCALE_PJRT_CLIENT="true")
def test_set_from_the_start(xla_target: Target, tpu_events: EventLog) -> None:
    """Then TorchTPU's own client is guarded too, and nobody discovers the slices."""
    backend = BACKENDS["torch_tpu"]

    def ask(_: int) -> float:
        backend.join()
        result = compute_by_jax()
        backend.settle()
        return result

    assert run_ranks(ask, xla_target.topology) == [28, 28]
    tpu_events.expect_discoveries(0)


def test_guarded_jax_before(xla_target: Target, tpu_events: EventLog) -> None:
    """What a user can do about it: set the guard around the first use of JAX."""
    backend = BACKENDS["torch_tpu"]

    def ask(_: int) -> tuple[float, float, float]:
        os.environ[GUARD] = "true"
        first = compute_by_jax()
        del os.environ[GUARD]
        backend.join()
        results = first, reduce_by_torch_tpu(), compute_by_jax()
        backend.settle()
        return results

    assert run_ranks(ask, xla_target.topology) == [(28, 2, 28)] * 2
    tpu_events.expect_discoveries(1)
    assert list(clients(tpu_events).values()) == [[("jax", "true"), ("torch_tpu", None)]] * 2


def trace_kernel(target: Target) -> Callable[[], object]:
    """Ask for the result's shape only, as PyTorch does with a model on device "meta"."""
    kernels = kernels_of(target)
    leaves = {name: tensor.to("meta") for name, tensor in inputs(PROBLEM).items()}
    return lambda: kernels.flash(PROBLEM, leaves)


@pytest.mark.environment(VIRTUAL_TPU_DEADLINE="5")  # a second discovery waits in vain
@pytest.mark.parametrize("first", ["jax", "traced-kernel"])
def test_jax_before(xla_target: Target, tpu_events: EventLog, first: str) -> None:
    """TorchTPU comes later than JAX's client, which has discovered the slices already."""
    backend = BACKENDS["torch_tpu"]
    use_jax = compute_by_jax if first == "jax" else trace_kernel(xla_target)

    def ask(_: int) -> float:
        use_jax()
        backend.join()
        result = reduce_by_torch_tpu()
        backend.settle()
        return result

    assert run_ranks(ask, xla_target.topology) == [2, 2]
    tpu_events.expect_discoveries(1)
