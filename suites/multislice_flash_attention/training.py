"""A model with flash attention, its training on the device, and the same in float64."""

from collections.abc import Callable
from typing import Any

import torch
import torch_xla
from torch import nn

from suites.multislice_flash_attention.problems import Problem, softmax_attention

BATCH, LENGTH, WIDTH, STEPS, RATE = 4, 128, 64, 4, 0.2
# float32 against float64 over four steps, of losses around 1.
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}
_PROBLEM = Problem(heads=1, queries=LENGTH, keys=LENGTH, width=WIDTH, causal=True, scale=0.125)

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Block(nn.Module):
    """Causal self-attention of one head and a projection, around a residual connection."""

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.attention = attention
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, length, width] to the same."""
        q, k, v = (part.unsqueeze(1) for part in self.qkv(x).chunk(3, dim=-1))
        return x + self.out(self.attention(q, k, v).squeeze(1))


def flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **sharding: Any) -> torch.Tensor:
    """Compute the model's attention by torch_xla."""
    from torch_xla.experimental.custom_kernel import flash_attention

    return flash_attention(q, k, v, causal=True, sm_scale=_PROBLEM.scale, **sharding)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and targets, [batch, length, width]."""
    random = torch.Generator().manual_seed(2)
    return tuple(torch.randn(BATCH, LENGTH, WIDTH, generator=random) for _ in range(2))


def block(attention: Attention) -> Block:
    """Return the model with the weights that every training starts from."""
    torch.manual_seed(1)
    return Block(attention)


def train(
    model: Block,
    x: torch.Tensor,
    y: torch.Tensor,
    synchronize: Callable[[Block], None] = lambda _: None,
) -> list[float]:
    """Losses of STEPS steps of gradient descent; ``synchronize`` may change gradients."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        synchronize(model)
        optimizer.step()
        torch_xla.sync()
        losses.append(loss.item())
    return losses


def expected_losses() -> list[float]:
    """Train on the whole batch in float64 on the CPU, with a plain softmax attention."""

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return softmax_attention(_PROBLEM, {"q": q, "k": k, "v": v})

    x, y = (t.double() for t in batch())
    return train(block(attention).double(), x, y)
