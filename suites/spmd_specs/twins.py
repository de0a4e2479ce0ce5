"""A model under FSDPv2 and the same in plain PyTorch, compared with each other."""

import copy
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import nn

from harness.oracles.sharding import Layout, Spec, as_numpy, check_placement
from suites.shared.execution import settle
from suites.spmd_specs.meshes import marked, shuffled
from suites.spmd_specs.models import Net, batch, train

AXES = ("data", "fsdp")
Optimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
SGD: Optimizer = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)
ADAM: Optimizer = functools.partial(torch.optim.Adam, lr=0.01)


def fsdp_layout(devices: int, replicas: int = 1) -> Layout:
    return Layout((replicas, devices // replicas), shuffled(devices), AXES)


def parameter_spec(value: torch.Tensor) -> Spec:
    """FSDPv2's rule: the largest dimension, the first of them, goes to the axis 'fsdp'."""
    largest = max(range(value.dim()), key=lambda d: value.shape[d], default=None)
    return tuple("fsdp" if d == largest else None for d in range(value.dim()))


def check_tensor(tensor: torch.Tensor, expected: torch.Tensor, layout: Layout, name: str) -> None:
    """`tensor` holds `expected` up to rounding, and every device its own part of that."""
    torch.testing.assert_close(
        tensor.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-5, msg=lambda m: f"{name}: {m}"
    )
    check_placement(tensor, as_numpy(tensor), layout, parameter_spec(expected))


@dataclass(frozen=True)
class Twins:
    """A wrapped model and the same in plain PyTorch."""

    model: nn.Module
    reference: nn.Module
    layout: Layout

    def check(self) -> None:
        """Parameters, their gradients and the buffers are equal, and sharded as FSDPv2 says."""
        ours, theirs = self.model.named_parameters(), self.reference.parameters()
        for (name, parameter), expected in zip(ours, theirs, strict=True):
            check_tensor(parameter, expected, self.layout, name)
            if expected.grad is not None:
                check_tensor(parameter.grad, expected.grad, self.layout, f"{name}'s gradient")
        buffers = zip(self.model.buffers(), self.reference.buffers(), strict=True)
        for buffer, expected in buffers:
            torch.testing.assert_close(buffer.cpu(), expected, msg=lambda m: f"buffer: {m}")

    def train(
        self, optimizer: Optimizer, host_optimizer: Optimizer | None = None, *, steps: int = 1
    ) -> torch.optim.Optimizer:
        """Train both on one batch, check the losses, and return the optimizer of the model."""
        data = batch()
        over = tuple(marked(t, self.layout, (AXES, None)) for t in data)
        own = optimizer(self.model.parameters())
        losses = train(self.model, own, over, steps=steps, settle=settle)
        host = (host_optimizer or optimizer)(self.reference.parameters())
        expected = train(self.reference, host, data, steps=steps)
        torch.testing.assert_close(
            torch.stack(losses).cpu(), torch.stack(expected), msg=lambda m: f"losses: {m}"
        )
        return own


def models(*, tied: bool = False) -> tuple[Net, Net]:
    torch.manual_seed(0)
    reference = Net(tied=tied)
    return copy.deepcopy(reference), reference
