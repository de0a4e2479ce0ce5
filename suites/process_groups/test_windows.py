"""TorchTPU's windows: one-sided transfers into memory that a rank has registered."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist

from harness.model.topology import Target
from suites.collectives.data import ranks_of
from suites.process_groups.asking import ask
from suites.process_groups.jobs import Program, Question, Rank

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.frameworks("torch_tpu"),
    pytest.mark.topologies("4@chip"),
    pytest.mark.upstream("pytorch/xla#9315"),
]
ROWS, AT = 8, 3  # of a window, and the first that is written


def _put(window: torch.Tensor, given: torch.Tensor, to: int, first: int) -> None:
    made = dist._new_window(window)
    work = made.put(given, dst_rank=to, target_offset_nelems=first, async_op=True)
    if work is not None:
        work.wait()
    made.tensor_deregister()


def _into_device(x: torch.Tensor, rank: Rank) -> torch.Tensor:
    window = torch.full((ROWS,), -1, dtype=x.dtype, device=x.device)
    _put(window, x.cpu(), rank.number, AT)
    return window


def _into_host(x: torch.Tensor, rank: Rank) -> torch.Tensor:
    window = torch.full((ROWS,), -1, dtype=x.dtype).pin_memory()
    _put(window, x, rank.number, AT)
    return window


@pytest.mark.parametrize("program", [_into_device, _into_host], ids=["to_device", "to_host"])
def test_put_here(xla_target: Target, subtests: pytest.Subtests, program: Program) -> None:
    """A part of a rank's own window is written from the other side of its host; the rest stays."""
    questions = {}
    for dtype in ("float32", "bfloat16", "int32"):
        inputs = ranks_of(4, (4,), dtype)
        expected = [np.full(ROWS, -1, x.dtype) for x in inputs]
        for window, x in zip(expected, inputs, strict=True):
            window[AT : AT + 4] = x
        questions[dtype] = Question(program, inputs, expected, None)
    ask(subtests, xla_target, questions)


def test_put_there(xla_target: Target, subtests: pytest.Subtests) -> None:
    """Each rank writes to the window of the next, which waits for the signal."""

    def program(x: torch.Tensor, rank: Rank) -> torch.Tensor:
        window = dist._new_window(x)
        last = dist.get_world_size() - 1
        sent = None
        if rank.number < last:
            sent = window.put(x, dst_rank=rank.number + 1, target_offset_nelems=0, async_op=True)
        if rank.number > 0:
            window.wait_signal(peer_rank=rank.number - 1, async_op=False)
        received = window.map_remote_tensor(rank.number).clone()
        if sent is not None:
            sent.wait()
        window.tensor_deregister()
        dist.barrier()
        return received

    inputs = ranks_of(4, (ROWS,))
    expected = [inputs[0], *inputs[:-1]]
    ask(subtests, xla_target, {"float32": Question(program, inputs, expected, None)})


@pytest.mark.parametrize("first", [AT, -1], ids=["beyond", "before"])
def test_out_of_bounds(xla_target: Target, subtests: pytest.Subtests, first: int) -> None:
    """What does not fit is refused, and nothing is written."""

    def program(x: torch.Tensor, rank: Rank) -> torch.Tensor:
        window = torch.full((ROWS,), -1, dtype=x.dtype, device=x.device)
        with pytest.raises(RuntimeError):
            _put(window, x.cpu(), rank.number, first)
        return window

    inputs = ranks_of(4, (ROWS,))
    expected = [np.full(ROWS, -1, x.dtype) for x in inputs]
    ask(subtests, xla_target, {"float32": Question(program, inputs, expected, None)})
