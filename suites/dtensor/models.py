"""The two-layer model of pytorch/xla#8534 as one program for DTensor and for torch_xla."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from harness.oracles.torch_dtensor import DTensor, Placement, distribute_tensor
from suites.dtensor.layouts import S0, S1, R

# Which mesh dimension shards what, for a mesh whose last dimension is the model's.
TENSOR_PARALLEL: Mapping[str, Placement] = {
    "in_proj.weight": S0,
    "in_proj.bias": S0,
    "out_proj.weight": S1,
    "out_proj.bias": R,
}

Place = Callable[[torch.Tensor, DeviceMesh, Sequence[Placement]], torch.Tensor]


def distributed(
    tensor: torch.Tensor, mesh: DeviceMesh, placements: Sequence[Placement]
) -> torch.Tensor:
    """Use what distribute_tensor returns, as parallelize_module does."""
    return distribute_tensor(tensor, mesh, placements)


def annotated(
    tensor: torch.Tensor, mesh: DeviceMesh, placements: Sequence[Placement]
) -> torch.Tensor:
    """Go on with the XLA tensor itself, which torch_xla's distribute_tensor marks in place."""
    distribute_tensor(tensor, mesh, placements)
    return tensor


class TwoLayer(nn.Module):
    """in_proj, relu, out_proj: [batch, 10] to [batch, 5]."""

    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.in_proj = nn.Linear(10, hidden)
        self.relu = nn.ReLU()
        self.out_proj = nn.Linear(hidden, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out_proj(self.relu(self.in_proj(x)))


def seeded_model(hidden: int = 32) -> TwoLayer:
    torch.manual_seed(0)
    return TwoLayer(hidden)


def seeded_batch() -> torch.Tensor:
    return torch.randn(8, 10, generator=torch.Generator().manual_seed(1))


def distribute_parameters(model: nn.Module, mesh: DeviceMesh, place: Place) -> None:
    """Place each parameter by hand: upstream's advice instead of parallelize_module."""
    for name, parameter in list(model.named_parameters()):
        placed = place(parameter, mesh, [R] * (mesh.ndim - 1) + [TENSOR_PARALLEL[name]])
        if placed is not parameter:
            layer, _, attribute = name.partition(".")
            setattr(getattr(model, layer), attribute, nn.Parameter(placed))


def forward(model: nn.Module, mesh: DeviceMesh, place: Place) -> dict[str, torch.Tensor]:
    """Run the model on the seeded batch, which is split over the mesh's first of two dimensions."""
    batch = seeded_batch().to(mesh.device_type)
    return {"output": model(place(batch, mesh, [R] if mesh.ndim == 1 else [S0, R]))}


def train(
    model: nn.Module, mesh: DeviceMesh, place: Place, steps: int = 1
) -> dict[str, torch.Tensor]:
    """Take steps of plain gradient descent; return output, gradients and parameters by name."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    results: dict[str, torch.Tensor] = {}
    for _ in range(steps):
        optimizer.zero_grad()
        results = forward(model, mesh, place)
        _gathered(results["output"]).square().mean().backward()
        optimizer.step()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, f"{name} has no gradient"
        results[f"{name}.grad"] = parameter.grad
        results[name] = parameter
    return results


def whole(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Gather outputs and gradients on every rank; a parameter stays in its shards."""
    return {
        name: tensor if name in TENSOR_PARALLEL else _gathered(tensor)
        for name, tensor in tensors.items()
    }


def _gathered(tensor: torch.Tensor) -> torch.Tensor:
    """Return the global tensor of a rank's DTensor; torch_xla's own subclass stays as it is.

    In torch 2.8 and before the square of partial sums, which the output is, has a wrong gradient.
    """
    return tensor.full_tensor() if type(tensor) is DTensor else tensor
