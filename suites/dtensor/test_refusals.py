"""What ``distribute_tensor`` on an "xla" mesh must refuse, and what it must take."""

from collections.abc import Sequence
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch_xla.distributed.spmd as xs
from torch.distributed.device_mesh import DeviceMesh

from harness.model.topology import Topology
from harness.oracles import dtensor as oracle
from harness.oracles.gloo import RankError
from harness.oracles.torch_dtensor import Partial, Placement, Shard, distribute_tensor
from harness.session.fixtures import StartRuntime
from suites.dtensor.layouts import S0, S1, P, R, case_id, counting, quiet_upstream, ranks
from suites.dtensor.shards import assert_held

pytestmark = [
    pytest.mark.lanes("cpu", "virtual-*"),
    pytest.mark.upstream("pytorch/xla#8534"),
    quiet_upstream,
]


def xla_mesh(*shape: int) -> DeviceMesh:
    return DeviceMesh("xla", ranks(shape))


@pytest.mark.topologies(1, 4)
@pytest.mark.parametrize("placements", [(P,), (Partial("max"),)], ids=["sum", "max"])
def test_partial(
    topology: Topology, start_runtime: StartRuntime, placements: Sequence[Placement]
) -> None:
    """A whole tensor can't be distributed as partial sums: DTensor refuses it, and so must XLA."""
    mesh = ranks((topology.total,))
    with pytest.raises(RankError, match="unsupported placements P"):
        oracle.distribute(counting((8, 8)), mesh, placements)
    start_runtime(spmd=True)
    with pytest.raises(ValueError, match="Unsupported placement type: Partial"):
        distribute_tensor(counting((8, 8)), DeviceMesh("xla", mesh), placements)


@pytest.mark.topologies(4)
@pytest.mark.parametrize("placements", [(P, S0), (S0, P), (R, P)], ids=case_id)
def test_partial_beside_another_placement(
    start_runtime: StartRuntime, placements: Sequence[Placement]
) -> None:
    start_runtime(spmd=True)
    with pytest.raises(ValueError, match="Unsupported placement type: Partial"):
        distribute_tensor(counting((8, 8)), xla_mesh(2, 2), placements)


@pytest.mark.topologies(1, 4)
@pytest.mark.parametrize(
    ("shape", "dim"), [((8, 8), 2), ((8, 8), -3), ((), 0), ((), -1)], ids=case_id
)
def test_dimension_out_of_range(
    topology: Topology, start_runtime: StartRuntime, shape: tuple[int, ...], dim: int
) -> None:
    start_runtime(spmd=True)
    with pytest.raises(IndexError):
        distribute_tensor(counting(shape), xla_mesh(topology.total), (Shard(dim),))


@pytest.mark.topologies(4)
@pytest.mark.parametrize("placements", [(), (R, R), (S0, R)], ids=["none", "R,R", "S0,R"])
def test_wrong_number_of_placements(
    start_runtime: StartRuntime, placements: Sequence[Placement]
) -> None:
    start_runtime(spmd=True)
    with pytest.raises(AssertionError, match=r"same length as `device_mesh\.ndim`"):
        distribute_tensor(counting((8, 8)), xla_mesh(4), placements)


@pytest.mark.topologies(4)
@pytest.mark.parametrize("size", [2, 8])
def test_mesh_of_another_size_than_the_runtime(start_runtime: StartRuntime, size: int) -> None:
    start_runtime(spmd=True)
    with pytest.raises(AssertionError):
        distribute_tensor(counting((8, 8)), xla_mesh(size), (S0,))


@pytest.mark.topologies(4)
@pytest.mark.parametrize("placements", [(S0,), (S1,), (R,)], ids=case_id)
def test_sharded_input(start_runtime: StartRuntime, placements: Sequence[Placement]) -> None:
    """torch_xla wants an existing annotation cleared first, even when it is the same."""
    start_runtime(spmd=True)
    placed = distribute_tensor(counting((8, 8)), xla_mesh(4), (S0,))
    with pytest.raises(AssertionError, match="already annotated with non-replication sharding"):
        distribute_tensor(placed, xla_mesh(4), placements)


@pytest.mark.topologies(2, 4)
@pytest.mark.parametrize("placements", [(S0,), (S1,), (R,)], ids=case_id)
def test_replicated_input(
    topology: Topology, start_runtime: StartRuntime, placements: Sequence[Placement]
) -> None:
    mesh = ranks((topology.total,))
    held = oracle.distribute(counting((8, 8)), mesh, placements)
    start_runtime(spmd=True)
    replicated = distribute_tensor(counting((8, 8)), DeviceMesh("xla", mesh), (R,))
    placed = distribute_tensor(replicated, DeviceMesh("xla", mesh), placements)
    assert_held(placed, held, "a replicated tensor distributed again")


@pytest.mark.topologies(4)
def test_annotated_tensor_again_in_the_same_way(start_runtime: StartRuntime) -> None:
    held = oracle.distribute(counting((8, 8)), ranks((4,)), (S0,))
    start_runtime(spmd=True)
    tensor = counting((8, 8)).to("xla")
    distribute_tensor(tensor, xla_mesh(4), (S0,))
    assert_held(distribute_tensor(tensor, xla_mesh(4), (S0,)), held, "S0 twice")


@pytest.mark.topologies(4)
def test_annotated_tensor_again_in_another_way(start_runtime: StartRuntime) -> None:
    start_runtime(spmd=True)
    tensor = counting((8, 8)).to("xla")
    distribute_tensor(tensor, xla_mesh(4), (S0,))
    with pytest.raises(RuntimeError, match="Existing annotation must be cleared first"):
        distribute_tensor(tensor, xla_mesh(4), (S1,))


@pytest.mark.topologies(4)
def test_input_after_clear_sharding(start_runtime: StartRuntime) -> None:
    """What torch_xla wants to be done before a tensor is distributed anew."""
    held = oracle.distribute(counting((8, 8)), ranks((4,)), (S1,))
    start_runtime(spmd=True)
    placed = distribute_tensor(counting((8, 8)), xla_mesh(4), (S0,))
    xs.clear_sharding(placed)
    assert_held(distribute_tensor(placed, xla_mesh(4), (S1,)), held, "S1 after clear_sharding")


@pytest.mark.topologies(4)
def test_computed_input(start_runtime: StartRuntime) -> None:
    """The result of an operation on a distributed tensor has no annotation of its own."""
    held = oracle.distribute(counting((8, 8)) * 2, ranks((4,)), (S1,))
    start_runtime(spmd=True)
    placed = distribute_tensor(counting((8, 8)), xla_mesh(4), (S0,))
    assert_held(distribute_tensor(placed * 2, xla_mesh(4), (S1,)), held, "S1 of a product")


@pytest.mark.topologies(4)
@pytest.mark.environment(GLOO_SOCKET_IFNAME="lo")
def test_dtensor_of_another_device_type(start_runtime: StartRuntime) -> None:
    """A DTensor on the CPU holds one shard only, so it can't be the global tensor."""
    start_runtime(spmd=True)
    dist.init_process_group(
        "gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=timedelta(seconds=10)
    )
    held_by_a_process = distribute_tensor(counting((8, 8)), DeviceMesh("cpu", [0]), (S0,))
    with pytest.raises(ValueError, match="The input tensor must be global"):
        distribute_tensor(held_by_a_process, xla_mesh(4), (S0,))


@pytest.mark.topologies(4)
def test_meta_tensor(start_runtime: StartRuntime) -> None:
    """DTensor distributes a meta tensor: deferred initialisation begins with it."""
    held = oracle.distribute(torch.empty(8, 6, device="meta"), ranks((4,)), (S0,))
    assert [tuple(shard.shape) for shard in held.shards] == [(2, 6)] * 4
    start_runtime(spmd=True)
    placed = distribute_tensor(torch.empty(8, 6, device="meta"), xla_mesh(4), (S0,))
    assert placed.placements == held.placements
