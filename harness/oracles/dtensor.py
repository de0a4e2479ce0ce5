"""Results of a DTensor program whose ranks are processes of their own, joined by gloo.

The reference for torch_xla's DTensor integration, in which one process holds all the devices:
device *i* there must hold what rank *i* holds here.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh

from harness.oracles.gloo import RankError, run_ranks
from harness.oracles.torch_dtensor import DTensor, Placement, Replicate, distribute_tensor

Program = Callable[[DeviceMesh], Mapping[str, torch.Tensor]]


@dataclass(frozen=True)
class Held:
    """A tensor as its ranks hold it.

    shards: the local tensor of each rank, in rank order.
    placements: what the DTensor reports; empty for a plain tensor.
    """

    shards: tuple[torch.Tensor, ...]
    placements: tuple[Placement, ...] = ()


def run_program(program: Program, mesh: torch.Tensor) -> dict[str, Held]:
    """Run the program once in each rank of the mesh and gather its tensors by name.

    The mesh holds the ranks 0 to n - 1 in any shape and order. A RankError is raised when the
    program raises in any rank; the case is skipped when PyTorch's own DTensor has no answer.
    """

    def run(_: int) -> dict[str, tuple[torch.Tensor, tuple[Placement, ...]]]:
        tensors = program(DeviceMesh("cpu", mesh))
        return {name: _portable(tensor) for name, tensor in tensors.items()}

    try:
        ranks = run_ranks(run, mesh.numel())
    except RankError as error:
        if "in gen_einsum_strategies" in str(error):
            pytest.skip("torch 2.5 and before can't multiply matrices over a mesh of one device")
        raise
    return {
        name: Held(tuple(rank[name][0] for rank in ranks), placements)
        for name, (_, placements) in ranks[0].items()
    }


def distribute(
    tensor: torch.Tensor,
    mesh: torch.Tensor,
    placements: Sequence[Placement] | None,
    *,
    source_rank: int | None = 0,
) -> Held:
    """Distribute the tensor over the ranks of the mesh.

    With a source rank its data is scattered, which DTensor does by the order of ranks in a
    process group: sorted, so wrong for a mesh with descending ranks (full_tensor() shows it).
    With None each rank takes its shard of its own copy, by its coordinate in the mesh.
    """
    return distribute_all([(tensor, placements)], mesh, source_rank=source_rank)[0]


def distribute_all(
    requests: Sequence[tuple[torch.Tensor, Sequence[Placement] | None]],
    mesh: torch.Tensor,
    *,
    source_rank: int | None = 0,
) -> list[Held]:
    """Distribute each tensor with its placements, all in one run of processes."""

    def program(ranks: DeviceMesh) -> dict[str, torch.Tensor]:
        return {
            str(number): _distributed(tensor, ranks, placements, source_rank)
            for number, (tensor, placements) in enumerate(requests)
        }

    return list(run_program(program, mesh).values())


def _distributed(
    tensor: torch.Tensor,
    ranks: DeviceMesh,
    placements: Sequence[Placement] | None,
    source_rank: int | None,
) -> torch.Tensor:
    if source_rank == 0:
        return distribute_tensor(tensor, ranks, placements)
    if "src_data_rank" in inspect.signature(distribute_tensor).parameters:
        return distribute_tensor(tensor, ranks, placements, src_data_rank=source_rank)
    assert source_rank is None, "before torch 2.7 the source is rank 0 or each rank itself"
    return own_shard(tensor, ranks, placements)


def own_shard(
    tensor: torch.Tensor, ranks: DeviceMesh, placements: Sequence[Placement] | None
) -> torch.Tensor:
    """Return what ``distribute_tensor(..., src_data_rank=None)`` does since torch 2.7.

    A rank cuts its shard out of its own copy: a replica, redistributed, needs no other rank's data.
    """
    copies = [Replicate()] * ranks.ndim
    replicated = DTensor.from_local(tensor, ranks, copies, run_check=False)
    return replicated.redistribute(ranks, placements or copies)


def redistribute(
    tensor: torch.Tensor,
    mesh: torch.Tensor,
    source: Sequence[Placement],
    target: Sequence[Placement],
) -> Held:
    """Distribute the tensor with the source placements, then move it to the target placements."""

    def program(ranks: DeviceMesh) -> dict[str, torch.Tensor]:
        return {"x": distribute_tensor(tensor, ranks, source).redistribute(ranks, target)}

    return run_program(program, mesh)["x"]


def _portable(tensor: torch.Tensor) -> tuple[torch.Tensor, tuple[Placement, ...]]:
    """Return what can leave the process; a DTensor can't, it holds its process group."""
    if isinstance(tensor, DTensor):
        return tensor.to_local().detach().clone(), tensor.placements
    return tensor.detach(), ()
