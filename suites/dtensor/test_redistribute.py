"""``redistribute`` moves the shards where DTensor moves them.

torch_xla's method takes its own mesh, ``torch_xla.distributed.spmd.Mesh``, not the DeviceMesh that
DTensor's takes; most cases give it what it takes.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch_xla.distributed.spmd as xs
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch_xla.distributed.spmd.api import convert_to_xla_mesh

from harness.model.topology import Topology
from harness.oracles import dtensor as oracle
from harness.oracles.torch_dtensor import Placement, Shard, distribute_tensor
from harness.session.fixtures import StartRuntime
from suites.dtensor.layouts import (
    S0,
    S1,
    P,
    R,
    case_id,
    counting,
    placements_id,
    quiet_upstream,
    ranks,
)
from suites.dtensor.shards import assert_held, device_shards, host

pytestmark = [
    pytest.mark.lanes("cpu", "virtual-*"),
    pytest.mark.upstream("pytorch/xla#9418"),
    quiet_upstream,
]


def placed_on(
    mesh: torch.Tensor, placements: Sequence[Placement], shape: tuple[int, ...] = (8, 8)
) -> Any:
    return distribute_tensor(counting(shape), DeviceMesh("xla", mesh), placements)


def xla_mesh(mesh: torch.Tensor) -> xs.Mesh:
    return convert_to_xla_mesh(DeviceMesh("xla", mesh))


def check(
    shape: tuple[int, ...],
    mesh: torch.Tensor,
    source: Sequence[Placement],
    target: Sequence[Placement],
    start_runtime: StartRuntime,
) -> None:
    held = oracle.redistribute(counting(shape), mesh, source, target)
    start_runtime(spmd=True)
    moved = placed_on(mesh, source, shape).redistribute(xla_mesh(mesh), target)
    label = f"{placements_id(source)} to {placements_id(target)}"
    assert_held(moved, held, label)
    assert torch.equal(host(moved), counting(shape)), "the global values changed"
    assert moved.placements == held.placements, (
        f"{label}: placements read back as {placements_id(moved.placements)}, in DTensor as "
        f"{placements_id(held.placements)}"
    )


@pytest.mark.topologies(2, 8)
@pytest.mark.parametrize(
    ("source", "target"), list(itertools.permutations([(S0,), (S1,), (R,)], 2)), ids=case_id
)
def test_one_mesh_dimension(
    topology: Topology,
    start_runtime: StartRuntime,
    source: Sequence[Placement],
    target: Sequence[Placement],
) -> None:
    check((8, 8), ranks((topology.total,)), source, target, start_runtime)


@pytest.mark.topologies(4)
@pytest.mark.parametrize(
    ("shape", "source", "target"),
    [
        ((8, 8), (S0,), (S0,)),
        ((7, 5), (S0,), (S1,)),
        ((3, 2), (S1,), (S0,)),
        ((3, 5, 4), (S0,), (Shard(-1),)),
        ((0, 4), (S1,), (S0,)),
        ((), (R,), (R,)),
    ],
    ids=case_id,
)
def test_uneven_or_negative(
    start_runtime: StartRuntime,
    shape: tuple[int, ...],
    source: Sequence[Placement],
    target: Sequence[Placement],
) -> None:
    check(shape, ranks((4,)), source, target, start_runtime)


@pytest.mark.topologies(4)
@pytest.mark.parametrize(
    ("source", "target"),
    [
        ((S0, S1), (S1, S0)),
        ((S0, R), (R, S0)),
        ((R, R), (S1, S0)),
        ((S1, S0), (R, R)),
        ((S0, S1), (S0, R)),
        ((S0, R), (S0, S0)),
    ],
    ids=case_id,
)
def test_two_mesh_dimensions(
    start_runtime: StartRuntime, source: Sequence[Placement], target: Sequence[Placement]
) -> None:
    check((8, 8), ranks((2, 2)), source, target, start_runtime)


@pytest.mark.topologies(4)
@pytest.mark.parametrize("target", [(S1,), (R,)], ids=case_id)
def test_computed_source(start_runtime: StartRuntime, target: Sequence[Placement]) -> None:
    """The source is pending: its computation has not run when it is redistributed."""
    held = oracle.distribute(counting((8, 8)) * 2, ranks((4,)), target)
    start_runtime(spmd=True)
    moved = (placed_on(ranks((4,)), (S0,)) * 2).redistribute(xla_mesh(ranks((4,))), target)
    assert_held(moved, held, f"a product to {placements_id(target)}")


@pytest.mark.topologies(4)
@pytest.mark.parametrize("async_op", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("target", [(S1,), (R,)], ids=case_id)
def test_source_stays(
    start_runtime: StartRuntime, target: Sequence[Placement], async_op: bool
) -> None:
    """DTensor returns a new tensor and leaves its source where it was."""
    held = oracle.distribute(counting((8, 8)), ranks((4,)), (S0,))
    start_runtime(spmd=True)
    source = placed_on(ranks((4,)), (S0,))
    moved = source.redistribute(xla_mesh(ranks((4,))), target, async_op=async_op)
    device_shards(moved)
    assert_held(source, held, "the source after redistribute")


@pytest.mark.topologies(4)
def test_gradient(start_runtime: StartRuntime) -> None:
    """Redistributing is differentiable: its gradient is the identity."""

    def program(mesh: DeviceMesh, target_mesh: Any) -> dict[str, torch.Tensor]:
        parameter = nn.Parameter(distribute_tensor(counting((8, 8)), mesh, (S0,)))
        moved = (parameter * 2).redistribute(target_mesh, (S1,))
        return {"requires_grad": torch.tensor(moved.requires_grad)}

    held = oracle.run_program(lambda mesh: program(mesh, mesh), ranks((4,)))["requires_grad"]
    assert held.shards[0]
    start_runtime(spmd=True)
    moved = program(DeviceMesh("xla", ranks((4,))), xla_mesh(ranks((4,))))
    assert moved["requires_grad"], "the redistributed tensor does not require grad, DTensor's does"


@pytest.mark.topologies(1, 4)
@pytest.mark.parametrize("target", [(S1,), (R,)], ids=case_id)
def test_device_mesh(
    topology: Topology, start_runtime: StartRuntime, target: Sequence[Placement]
) -> None:
    """DTensor's signature: a DeviceMesh, the one that distribute_tensor was given."""
    mesh = ranks((topology.total,))
    held = oracle.redistribute(counting((8, 8)), mesh, (S0,), target)
    start_runtime(spmd=True)
    device_mesh = DeviceMesh("xla", mesh)
    moved = placed_on(mesh, (S0,)).redistribute(device_mesh, target)
    assert_held(moved, held, f"S0 to {placements_id(target)} on a DeviceMesh")


@pytest.mark.topologies(1, 4)
def test_placements_alone(topology: Topology, start_runtime: StartRuntime) -> None:
    """DTensor's mesh argument is optional: the tensor knows its own."""
    mesh = ranks((topology.total,))
    held = oracle.redistribute(counting((8, 8)), mesh, (S0,), (R,))
    start_runtime(spmd=True)
    assert_held(placed_on(mesh, (S0,)).redistribute(placements=(R,)), held, "S0 to R")


@pytest.mark.topologies(4)
@pytest.mark.parametrize(
    ("target", "error", "message"),
    [
        ((Shard(2),), IndexError, "Shard dimension 2 is out of bounds"),
        ((Shard(-3),), IndexError, None),
        ((P,), NotImplementedError, "Partial placement is not yet implemented"),
        ((R, R), ValueError, "must match mesh dimensions"),
        ((), ValueError, "must match mesh dimensions"),
    ],
    ids=["S2", "S-3", "P", "R,R", "none"],
)
def test_wrong_target(
    start_runtime: StartRuntime,
    target: Sequence[Placement],
    error: type[Exception],
    message: str | None,
) -> None:
    start_runtime(spmd=True)
    with pytest.raises(error, match=message):
        placed_on(ranks((4,)), (S0,)).redistribute(xla_mesh(ranks((4,))), target)
