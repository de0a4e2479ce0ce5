"""A small model with parameters and buffers of every rank from 0 to 4, and how to train it."""

from collections.abc import Callable

import torch
from torch import nn

WIDTH = 8


class Block(nn.Module):
    """Has a 0-d parameter (the report's, pytorch/xla#8522) and a 0-d buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(0.5))
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.cube = nn.Parameter(torch.linspace(-1, 1, 2 * WIDTH * 3).reshape(2, WIDTH, 3))
        self.tesseract = nn.Parameter(torch.linspace(0, 1, 4 * WIDTH).reshape(1, 2, WIDTH, 2))
        self.register_buffer("calls", torch.tensor(0.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1.0)
        shift = self.cube.mean((0, 2)) + self.tesseract.mean((0, 1, 3))
        return self.gain * torch.tanh(self.linear(x)) + shift * self.calls


class Net(nn.Module):
    """Two blocks and a 0-d temperature. `tied` shares a scalar and a matrix between the blocks."""

    def __init__(self, *, tied: bool = False) -> None:
        super().__init__()
        self.first = Block()
        self.second = Block()
        self.temperature = nn.Parameter(torch.tensor(1.5))
        if tied:
            self.tie()

    def tie(self) -> None:
        self.second.gain = self.first.gain
        self.second.linear.weight = self.first.linear.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.temperature * self.second(self.first(x))


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and targets on the host, (16, WIDTH) each."""
    generator = torch.Generator().manual_seed(7)
    x, y = torch.randn(2, 16, WIDTH, generator=generator)
    return x, y


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: tuple[torch.Tensor, torch.Tensor],
    *,
    steps: int,
    settle: Callable[[], object] = lambda: None,
) -> list[torch.Tensor]:
    """Losses of `steps` steps on the same data; `settle` ends each step."""
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = ((model(data[0]) - data[1]) ** 2).mean()
        loss.backward()
        optimizer.step()
        settle()
        losses.append(loss.detach())
    return losses
