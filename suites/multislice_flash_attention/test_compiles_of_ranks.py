"""TorchTPU's attention kernels compiled by Mosaic, alone and in a training step over slices.

As in ``test_compiles.py``: a kernel's module must be accepted, be there as often as it was called,
and have no collective of its own (pytorch/xla#8850).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from harness.lanes.aot.case_compiler import CaseCompiler
from harness.model.topology import Target
from suites.shared.compiling import Step, as_one, compile_steps

pytestmark = [
    pytest.mark.lanes("tpu-aot"),
    pytest.mark.frameworks("torch_tpu"),
    pytest.mark.upstream("pytorch/xla#8850"),
    pytest.mark.deadline(120),
]
LENGTH, WIDTH = 512, 128


@dataclass(frozen=True)
class Attention:
    """A call of ``torch.tpu.ops.splash_sdpa``, of so many heads for queries and for keys."""

    options: Mapping[str, Any]
    heads: tuple[int, int] = (2, 2)
    dtype: torch.dtype = torch.float32

    def leaves(self, device: torch.device) -> list[torch.Tensor]:
        """Return queries, keys and values: [batch, heads, length, width]."""
        queries, keys = self.heads
        random = torch.Generator().manual_seed(0)
        return [
            torch.randn(1, heads, LENGTH, WIDTH, generator=random)
            .to(device, self.dtype)
            .requires_grad_()
            for heads in (queries, keys, keys)
        ]


ATTENTIONS = {
    "plain": Attention({"is_causal": False}),
    "causal": Attention({}),
    "bf16": Attention({}, dtype=torch.bfloat16),
    "window": Attention({"local_window_size": 128}),
    "grouped": Attention({"enable_gqa": True}, heads=(4, 2)),
    "one-key-head": Attention({"enable_gqa": True}, heads=(4, 1)),
    "two-kernels-backward": Attention({"use_fused_bwd_kernel": False}),
}


@pytest.mark.topologies("v6e:1x1", "v5e:1x1")
@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention(xla_target: Target, xla_compiler: CaseCompiler, name: str) -> None:
    """The forward pass is one kernel; the backward pass is one, or one each for q and for k, v."""
    attention = ATTENTIONS[name]

    def prepare(device: torch.device) -> Mapping[str, Step]:
        leaves = attention.leaves(device)
        results: list[torch.Tensor] = []

        def forward() -> None:
            results.append(torch.tpu.ops.splash_sdpa(*leaves, **attention.options))

        def backward() -> None:
            results[0].sum().backward()

        return {"forward": forward, "backward": backward}

    steps = compile_steps(xla_compiler, xla_target, prepare)
    assert as_one(steps["forward"]).kernels == 1
    assert as_one(steps["backward"]).kernels == (2 if "two" in name else 1)


class Block(torch.nn.Module):
    """Causal self-attention of one head and a projection, around a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = torch.nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, length, width] to the same."""
        q, k, v = (part.unsqueeze(1) for part in self.qkv(x).chunk(3, dim=-1))
        return x + self.out(torch.tpu.ops.splash_sdpa(q, k, v).squeeze(1))


@pytest.mark.topologies("2xv6e:2x2", "2xv5e:2x2", "v6e:2x4")
def test_training_step(xla_target: Target, xla_compiler: CaseCompiler) -> None:
    """Data parallel over slices and chips: between slices go the gradients, once, and no more.

    A slice reduces and scatters them first, so that each device sends its part of each gradient.
    """
    topology = xla_target.topology

    def prepare(device: torch.device) -> Mapping[str, Step]:
        torch.manual_seed(1)
        model = DistributedDataParallel(Block().to(device))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.ones(1, LENGTH, WIDTH).to(device)

        def step() -> None:
            model(x).square().mean().backward()
            optimizer.step()

        return {"step": step}

    program = as_one(compile_steps(xla_compiler, xla_target, prepare)["step"])
    gradients = sum(4 * parameter.numel() for parameter in Block().parameters())
    assert program.kernels == 2
    if topology.slices == 1:
        assert program.bytes_across == 0
        assert program.bytes_inside == gradients
    else:
        assert gradients // topology.devices <= program.bytes_across <= 1.25 * gradients
        assert set(program.kinds_across) == {"ALL_REDUCE"}
