"""A DTensor program on a framework, and the same program on one plain tensor each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import parallelize_module

from harness.job.ranks import run_ranks
from harness.model.mismatch import NumbersError
from harness.model.topology import Target
from harness.oracles.torch_dtensor import DTensor, Placement, Shard, distribute_tensor
from harness.session.fixtures import StartRuntime

Values = dict[str, np.ndarray]


@dataclass(frozen=True)
class Placing:
    """What a program does with its tensors: on a mesh, or nothing at all without one."""

    mesh: DeviceMesh | None = None

    def place(self, tensor: torch.Tensor, *placements: Placement) -> torch.Tensor:
        """Distribute it."""
        if self.mesh is None:
            return tensor
        return distribute_tensor(tensor.to(self.mesh.device_type), self.mesh, placements)

    def join(self, tensor: torch.Tensor, placement: Placement) -> torch.Tensor:
        """Make one of what the ranks of a mesh of one dimension have: its part, or its addend."""
        if self.mesh is None:
            return tensor
        rank, world = self.mesh.get_local_rank(), self.mesh.size()
        own = tensor / world if placement.is_partial() else tensor
        if isinstance(placement, Shard):
            parts = tensor.chunk(world, placement.dim)
            own = parts[rank] if rank < len(parts) else parts[0].narrow(placement.dim, 0, 0)
        own = own.contiguous().to(self.mesh.device_type)
        shape, stride = tensor.shape, tensor.stride()
        joined: torch.Tensor = DTensor.from_local(
            own, self.mesh, [placement], shape=shape, stride=stride
        )
        return joined

    def compiled(self, step: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        """Compile it, by TorchTPU."""
        return step if self.mesh is None else torch.compile(step, backend="tpu", fullgraph=True)

    def move(self, tensor: torch.Tensor, *placements: Placement) -> torch.Tensor:
        """Redistribute it."""
        if self.mesh is None:
            return tensor
        moved: torch.Tensor = tensor.redistribute(self.mesh, placements)
        return moved

    def parallel(self, module: nn.Module, plan: object) -> nn.Module:
        """Shard its parameters over the mesh."""
        if self.mesh is None:
            return module
        return parallelize_module(module.to(self.mesh.device_type), self.mesh, plan)


Program = Callable[[Placing], Mapping[str, torch.Tensor]]


def on_one_tensor(program: Program) -> Values:
    """Run the program in plain PyTorch, where nothing is distributed."""
    return {name: tensor.detach().numpy() for name, tensor in program(Placing()).items()}


def on_framework(
    program: Program, target: Target, mesh: Sequence[int], start_runtime: StartRuntime
) -> list[Values]:
    """Return each process's whole values: one process under torch_xla, one per chip under TorchTPU.

    ``mesh`` is the shape of the mesh, which has all devices of the target.
    """
    ranks = torch.arange(target.topology.total).reshape(*mesh)
    if target.framework == "torch_xla":
        start_runtime(spmd=True)
        return [_of_one(program(Placing(DeviceMesh("xla", ranks))))]

    def rank(_: int) -> Values:
        dist.init_process_group("tpu")
        values = _of_ranks(program(Placing(DeviceMesh("tpu", ranks))))
        torch.accelerator.synchronize()
        return values

    return run_ranks(rank, target.topology)


def check(processes: Sequence[Values], expected: Values) -> None:
    """Every process has the expected values, to the precision of float32.

    Raises NumbersError, naming all that differ.
    """
    faults = []
    for number, values in enumerate(processes):
        for name, want in expected.items():
            got = values[name]
            if got.shape != want.shape:
                faults.append(f"process {number}: {name}: expected {want.shape}, got {got.shape}")
            elif not np.allclose(got, want, rtol=1e-4, atol=1e-5):
                off = np.abs(got - want).max()
                faults.append(f"process {number}: {name} is off by {off:g}")
    if faults:
        raise NumbersError("\n".join(faults))


def _of_ranks(tensors: Mapping[str, torch.Tensor]) -> Values:
    """Put together what the ranks hold."""
    whole = {
        name: tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        for name, tensor in tensors.items()
    }
    return {name: tensor.detach().cpu().numpy() for name, tensor in whole.items()}


def _of_one(tensors: Mapping[str, torch.Tensor]) -> Values:
    """Of torch_xla's one process, which has all devices, and so the whole of each tensor."""
    from suites.dtensor.shards import host

    return {name: host(tensor).numpy() for name, tensor in tensors.items()}
