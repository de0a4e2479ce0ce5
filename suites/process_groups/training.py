"""A model, its data, and what three steps of plain PyTorch on the CPU make of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from harness.model.mismatch import NumbersError
from suites.shared.backends import Backend

STEPS = 3
Optimizer = Callable[[Iterable[torch.nn.Parameter]], Any]
OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
}


@dataclass(frozen=True)
class Trained:
    """The loss of each step, and the outputs for `probe()` after the last one."""

    losses: Sequence[float]
    outputs: torch.Tensor


def net(norm: torch.nn.Module | None = None, seed: int = 7) -> torch.nn.Sequential:
    """Two layers, whose sizes no number of ranks divides, with `norm` between them."""
    torch.manual_seed(seed)
    between = [torch.nn.Tanh()] if norm is None else [norm, torch.nn.Tanh()]
    return torch.nn.Sequential(torch.nn.Linear(5, 7), *between, torch.nn.Linear(7, 3))


def batch(step: int, ranks: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and targets of all ranks, four rows for each, of different magnitudes."""
    random = torch.Generator().manual_seed(step)
    size = torch.arange(1.0, ranks + 1).repeat_interleave(4)[:, None]
    x = torch.randn(4 * ranks, 5, generator=random) * size
    return x, torch.randn(4 * ranks, 3, generator=random)


def own(rows: torch.Tensor, rank: int) -> torch.Tensor:
    """Return a rank's part of a batch."""
    return rows[4 * rank : 4 * rank + 4]


def probe() -> torch.Tensor:
    return torch.linspace(-1, 1, 30).reshape(6, 5)


def in_one_process(
    model: torch.nn.Module,
    optimizer: Any,
    ranks: int,
    steps: Iterable[int] = range(STEPS),
    clip: float | None = None,
) -> Trained:
    """Train on the whole batch in plain PyTorch; clip gradients to the norm `clip`, if given."""
    losses = []
    for step in steps:
        x, y = batch(step, ranks)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(loss.item())
    return Trained(losses, model.eval()(probe()).detach())


@dataclass(frozen=True)
class AllReduced:
    """An optimizer whose step averages the gradients first: torch_xla's `optimizer_step`."""

    optimizer: Any
    pin_layout: bool = True

    def step(self) -> None:
        from torch_xla.core import xla_model as xm

        xm.optimizer_step(self.optimizer, pin_layout=self.pin_layout)

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()


def train(
    model: torch.nn.Module, optimizer: Any, backend: Backend, steps: Iterable[int] = range(STEPS)
) -> Trained:
    """Train on this rank's part of each batch; the model or optimizer exchanges the gradients."""
    device = next(model.parameters()).device
    rank, world = dist.get_rank(), dist.get_world_size()
    losses = []
    for number in steps:
        x, y = (own(rows, rank).to(device) for rows in batch(number, world))
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        backend.end_step()
        losses.append(loss.item())
    outputs = model.eval()(probe().to(device))
    return Trained(losses, outputs.detach().cpu())


def check(ranks: Sequence[Trained], expected: Trained) -> None:
    """Every rank ends with the expected model, and the ranks' losses have the expected mean.

    Raises NumbersError.
    """
    faults = [
        f"rank {rank}: outputs are off by {difference:g}"
        for rank, trained in enumerate(ranks)
        if not (difference := (trained.outputs - expected.outputs).abs().max().item()) < 1e-4
    ]
    for step, loss in enumerate(expected.losses):
        mean = sum(trained.losses[step] for trained in ranks) / len(ranks)
        if not abs(mean - loss) < 1e-4 * max(1.0, abs(loss)):
            faults.append(f"step {step}: expected a mean loss of {loss:g}, got {mean:g}")
    if faults:
        raise NumbersError("\n".join(faults))
