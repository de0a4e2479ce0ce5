"""TorchTPU's windows: tensors that copies go into, from this rank or from another one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist

from harness.model.topology import Target
from suites.process_groups.asking import ask
from suites.process_groups.jobs import Program, Question, Rank
from suites.shared.values import ranks_of

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.frameworks("torch_tpu"),
    pytest.mark.topologies("4@chip"),
    pytest.mark.upstream("pytorch/xla#9315"),
    pytest.mark.skipif(not hasattr(dist, "_new_window"), reason="this torch has no windows"),
]


def _put_from_host(x: torch.Tensor, rank: Rank) -> torch.Tensor:
    """Copy the host's second half behind zeros on the device."""
    half = len(x) // 2
    window = dist._new_window(y := torch.zeros_like(x))
    given = x.cpu()[half:].contiguous()
    _wait(window.put(given, rank.number, target_offset_nelems=given.numel(), async_op=True))
    window.tensor_deregister()
    return y


def _put_to_host(x: torch.Tensor, rank: Rank) -> torch.Tensor:
    """Copy the device's second half behind zeros on the host."""
    half = len(x) // 2
    window = dist._new_window(y := torch.zeros(x.shape, dtype=x.dtype).pin_memory())
    given = x[half:].contiguous()
    _wait(window.put(given, rank.number, target_offset_nelems=given.numel(), async_op=True))
    window.tensor_deregister()
    return y


def _put_computed(x: torch.Tensor, rank: Rank) -> torch.Tensor:
    """Into a tensor that a program is just computing: the copy comes after that."""
    window = dist._new_window(y := x @ x.T @ x)
    _wait(window.put(x[:1].cpu(), rank.number, target_offset_nelems=0, async_op=True))
    window.tensor_deregister()
    return y[:1] + 1


def _put_to_next(x: torch.Tensor, rank: Rank) -> torch.Tensor:
    """Each rank but the last puts its tensor into the window of the next."""
    window = dist._new_window(y := torch.zeros_like(x))
    last = len(rank.members) - 1
    sent = None
    if rank.number < last:
        sent = window.put(x, rank.number + 1, target_offset_nelems=0, async_op=True)
    if rank.number > 0:
        _wait(window.wait_signal(peer_rank=rank.number - 1, async_op=True))
    _wait(sent)
    dist.barrier()
    window.tensor_deregister()
    return y


def _wait(work: dist.Work | None) -> None:
    if work is not None:
        work.wait()


def _behind_zeros(inputs: list[np.ndarray]) -> list[np.ndarray]:
    return [np.concatenate([np.zeros_like(x[: len(x) // 2]), x[len(x) // 2 :]]) for x in inputs]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
@pytest.mark.parametrize("program", [_put_from_host, _put_to_host], ids=["from_host", "to_host"])
def test_half(xla_target: Target, subtests: pytest.Subtests, program: Program, dtype: str) -> None:
    """A part of a tensor, between a rank's host and its device."""
    inputs = ranks_of(xla_target.topology.total, (8, 3), dtype)
    ask(subtests, xla_target, {dtype: Question(program, inputs, _behind_zeros(inputs), None)})


def test_computed(xla_target: Target, subtests: pytest.Subtests) -> None:
    inputs = ranks_of(xla_target.topology.total, (8, 3))
    expected = [x[:1] + 1 for x in inputs]
    ask(subtests, xla_target, {"float32": Question(_put_computed, inputs, expected, None)})


def test_next_rank(xla_target: Target, subtests: pytest.Subtests) -> None:
    inputs = ranks_of(xla_target.topology.total, (8, 3))
    shifted = [np.zeros_like(inputs[0]), *inputs[:-1]]
    ask(subtests, xla_target, {"float32": Question(_put_to_next, inputs, shifted, None)})


def test_settings(xla_target: Target, subtests: pytest.Subtests) -> None:
    """How a copy to another rank is divided is set for the process, and changes no value."""

    def program(x: torch.Tensor, rank: Rank) -> torch.Tensor:
        settings = torch.tpu.distributed
        settings.window_num_stripes, settings.window_stripe_chunk_mb = 3, 1
        assert (settings.window_num_stripes, settings.window_stripe_chunk_mb) == (3, 1)
        settings.window_stripe_chunk_mb = 2
        assert (settings.window_num_stripes, settings.window_stripe_chunk_mb) == (3, 2)
        for name in ("window_num_stripes", "window_stripe_chunk_mb"):
            with pytest.raises(
                (RuntimeError, ValueError), match=f"expected {name} to be > 0, got 0"
            ):
                setattr(settings, name, 0)
        return _put_to_next(x, rank)

    inputs = ranks_of(xla_target.topology.total, (8, 3))
    shifted = [np.zeros_like(inputs[0]), *inputs[:-1]]
    ask(subtests, xla_target, {"float32": Question(program, inputs, shifted, None)})
