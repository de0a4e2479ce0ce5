"""Modules whose parameters have numbers that depend on their shapes, and what they are held to."""

from __future__ import annotations

import torch
from torch import nn


def numbered(*shape: int) -> torch.Tensor:
    """Return a tensor of this shape with numbers from -1 to 1."""
    count = torch.Size(shape).numel()
    return torch.linspace(-1, 1, count).reshape(shape)


def fill(module: nn.Module) -> None:
    """Give a module's own parameters memory, and numbers that depend on their shapes."""
    for name, parameter in list(module.named_parameters(recurse=False)):
        setattr(module, name, nn.Parameter(numbered(*parameter.shape)))


def check_close(got: torch.Tensor, expected: torch.Tensor) -> None:
    """Raise AssertionError unless numbers are equal but for rounding, wherever they are."""
    torch.testing.assert_close(got.detach().cpu(), expected.detach(), rtol=1e-5, atol=1e-5)
