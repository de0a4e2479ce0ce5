"""What a distributed tensor says of itself is what DTensor says of the same tensor."""

import copy
import io
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch_xla.distributed import spmd as xs

from harness.model.mismatch import MismatchError
from harness.model.topology import Topology
from harness.oracles import dtensor as oracle
from harness.oracles.torch_dtensor import DTensor, Placement, Shard, distribute_tensor
from harness.session.fixtures import StartRuntime
from suites.dtensor.layouts import (
    S0,
    S1,
    S2,
    R,
    case_id,
    counting,
    placements_id,
    quiet_upstream,
    ranks,
)
from suites.dtensor.shards import assert_held, host

pytestmark = [
    pytest.mark.lanes("cpu", "virtual-*"),
    pytest.mark.upstream("pytorch/xla#8534", "pytorch/xla#9418"),
    quiet_upstream,
]


def assert_placements(got: Sequence[Placement], expected: Sequence[Placement], label: str) -> None:
    assert tuple(got) == tuple(expected), (
        f"{label}: placements read back as {placements_id(got)}, in DTensor as "
        f"{placements_id(expected)}"
    )


@pytest.mark.topologies(4)
@pytest.mark.parametrize(
    ("shape", "mesh", "placements"),
    [
        ((8, 8), (4,), (S0,)),
        ((8, 8), (4,), (R,)),
        ((8, 8), (4,), (Shard(-1),)),
        ((), (4,), (R,)),
        ((3, 5, 7), (2, 2), (S2, S0)),
        ((3, 5, 7), (2, 2), (R, Shard(-2))),
        ((8, 8), (2, 2), (R, R)),
        ((8, 8), (2, 2), (S0, S0)),
        ((8, 8), (2, 2, 1), (S1, S0, R)),
    ],
    ids=case_id,
)
def test_placements(
    start_runtime: StartRuntime,
    shape: tuple[int, ...],
    mesh: tuple[int, ...],
    placements: Sequence[Placement],
) -> None:
    held = oracle.distribute(counting(shape), ranks(mesh), placements)
    start_runtime(spmd=True)
    placed = distribute_tensor(counting(shape), DeviceMesh("xla", ranks(mesh)), placements)
    assert_placements(placed.placements, held.placements, placements_id(placements))


@pytest.mark.topologies(4)
def test_placements_after_another_annotation(start_runtime: StartRuntime) -> None:
    """A tensor that all devices have whole is divided later, and on another mesh."""
    start_runtime(spmd=True)
    whole = distribute_tensor(counting((8, 8)), DeviceMesh("xla", ranks((4,))), (R,))
    assert_placements(whole.placements, (R,), "whole")
    divided = xs.mark_sharding(whole, xs.Mesh(ranks((4,)).numpy(), (2, 2)), (1, 0))
    for tensor in (whole, divided):
        assert_placements(tensor.placements, (S1, S0), "divided")
        assert tensor.device_mesh.shape == (2, 2)


@pytest.mark.topologies(4)
@pytest.mark.parametrize(
    "mesh",
    [[0, 1, 2, 3], [[0, 1], [2, 3]], [[0, 2], [1, 3]], [3, 1, 2, 0]],
    ids=["line", "plane", "transposed", "permuted"],
)
def test_device_mesh(start_runtime: StartRuntime, mesh: list[Any]) -> None:
    start_runtime(spmd=True)
    placements = [S0] + [R] * (torch.tensor(mesh).ndim - 1)
    placed = distribute_tensor(counting((8, 8)), DeviceMesh("xla", mesh), placements)
    got = placed.device_mesh.mesh.tolist()
    assert got == mesh, f"device_mesh reads back as {got}, the tensor was distributed over {mesh}"


@pytest.mark.topologies(4)
def test_mesh_dimension_names(start_runtime: StartRuntime) -> None:
    start_runtime(spmd=True)
    mesh = init_device_mesh("xla", (2, 2), mesh_dim_names=("data", "model"))
    placed = distribute_tensor(counting((8, 8)), mesh, (S0, R))
    got = placed.device_mesh.mesh_dim_names
    assert got == ("data", "model"), f"mesh_dim_names reads back as {got}"


@pytest.mark.topologies(1, 4)
@pytest.mark.parametrize("placement", [S0, R], ids=lambda placement: placements_id([placement]))
def test_full_tensor(topology: Topology, start_runtime: StartRuntime, placement: Placement) -> None:
    start_runtime(spmd=True)
    mesh = DeviceMesh("xla", ranks((topology.total,)))
    placed = distribute_tensor(counting((8, 8)), mesh, (placement,))
    assert torch.equal(host(placed.full_tensor()), counting((8, 8)))


@pytest.mark.topologies(1, 4)
def test_to_local(topology: Topology, start_runtime: StartRuntime) -> None:
    """One process holds all devices, so its local tensor is the whole one (pytorch/xla#9505)."""
    start_runtime(spmd=True)
    mesh = DeviceMesh("xla", ranks((topology.total,)))
    placed = distribute_tensor(counting((8, 8)), mesh, (S0,))
    assert torch.equal(host(placed.to_local()), counting((8, 8)))


@pytest.mark.topologies(1, 4)
def test_from_local(topology: Topology, start_runtime: StartRuntime) -> None:
    """Every device's local tensor is the one given: replicated, the global tensor is the same."""
    start_runtime(spmd=True)
    mesh = DeviceMesh("xla", ranks((topology.total,)))
    placed = DTensor.from_local(counting((8, 8)).to("xla"), mesh, (R,))
    assert torch.equal(host(placed), counting((8, 8)))


@pytest.mark.topologies(4)
@pytest.mark.parametrize("requires_grad", [True, False], ids=["trained", "frozen"])
def test_requires_grad(start_runtime: StartRuntime, requires_grad: bool) -> None:
    def program(mesh: DeviceMesh) -> dict[str, torch.Tensor]:
        parameter = nn.Parameter(counting((8, 8)), requires_grad=requires_grad)
        placed = distribute_tensor(parameter, mesh, (S0,))
        return {"requires_grad": torch.tensor(placed.requires_grad)}

    (expected, *_) = oracle.run_program(program, ranks((4,)))["requires_grad"].shards
    start_runtime(spmd=True)
    got = program(DeviceMesh("xla", ranks((4,))))["requires_grad"]
    if got != expected:
        raise MismatchError(f"requires_grad is {got.item()}, in DTensor {expected.item()}")


@pytest.mark.topologies(4)
@pytest.mark.parametrize(
    "keep",
    [nn.Parameter, torch.Tensor.detach, torch.Tensor.clone, torch.relu, copy.deepcopy],
    ids=["Parameter", "detach", "clone", "relu", "deepcopy"],
)
def test_placements_after(
    start_runtime: StartRuntime, keep: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """DTensor's elementwise operations keep the placements, and so does nn.Parameter."""

    def program(mesh: DeviceMesh) -> dict[str, torch.Tensor]:
        return {"kept": keep(distribute_tensor(counting((8, 8)), mesh, (S0,)))}

    held = oracle.run_program(program, ranks((4,)))["kept"]
    start_runtime(spmd=True)
    kept = program(DeviceMesh("xla", ranks((4,))))["kept"]
    assert_held(kept, held, "the copy")
    assert_placements(kept.placements, held.placements, "the copy")


@pytest.mark.topologies(4)
def test_saved_and_loaded(start_runtime: StartRuntime) -> None:
    def program(mesh: DeviceMesh) -> dict[str, torch.Tensor]:
        file = io.BytesIO()
        torch.save(distribute_tensor(counting((8, 8)), mesh, (S0,)), file)
        file.seek(0)
        return {"loaded": torch.load(file, weights_only=False)}

    held = oracle.run_program(program, ranks((4,)))["loaded"]
    start_runtime(spmd=True)
    loaded = program(DeviceMesh("xla", ranks((4,))))["loaded"]
    assert_held(loaded, held, "what was saved and loaded")


@pytest.mark.topologies(1, 4)
@pytest.mark.upstream("pytorch/xla#5798")
def test_repr_of_a_propagated_result(topology: Topology, start_runtime: StartRuntime) -> None:
    """pytorch/xla#5798: the repr of an output whose sharding XLA chose had no global_tensor."""
    start_runtime(spmd=True)
    mesh = DeviceMesh("xla", ranks((topology.total,)))
    weight = distribute_tensor(counting((4, 4)), mesh, (S1,))
    product = torch.matmul(torch.eye(4).to("xla"), weight)
    assert "14., 15." in repr(product)
    assert torch.equal(host(product), counting((4, 4)))
