"""DTensor over several slices: device *i* is rank *i*, and ranks are numbered slice by slice.

A CPU has no slices, so these cases run on lane virtual-tpu only; the oracle is DTensor over gloo,
as in the other files, on a mesh of slices × devices.
"""

from collections.abc import Sequence
from functools import partial

import pytest
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch_xla import runtime as xr

from harness.model.topology import Topology
from harness.oracles import dtensor as oracle
from harness.oracles.torch_dtensor import Placement, distribute_tensor
from harness.session.fixtures import StartRuntime
from suites.dtensor.layouts import S0, S1, R, case_id, counting, quiet_upstream, ranks
from suites.dtensor.models import annotated, train
from suites.dtensor.shards import assert_held, device_shards
from suites.dtensor.test_two_layer_model import assert_same, on_xla, reference

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("2x2", "2x4"),
    pytest.mark.upstream("pytorch/xla#8534"),
    quiet_upstream,
]


@pytest.mark.parametrize("placements", [(S0, S1), (S1, S0), (R, S0), (S0, R)], ids=case_id)
def test_slices_by_devices(
    topology: Topology, start_runtime: StartRuntime, placements: Sequence[Placement]
) -> None:
    mesh = ranks((topology.slices, topology.devices))
    held = oracle.distribute(counting((7, 9)), mesh, placements)
    start_runtime(spmd=True)
    placed = distribute_tensor(counting((7, 9)), DeviceMesh("xla", mesh), placements)
    assert_held(placed, held, f"over {topology}")


def test_shards_stay_in_their_slice(topology: Topology, start_runtime: StartRuntime) -> None:
    """The first mesh dimension is the slices': the k-th rows are on devices with slice_index k."""
    start_runtime(spmd=True)
    mesh = init_device_mesh("xla", (topology.slices, topology.devices))
    shards = device_shards(distribute_tensor(counting((topology.slices, 3)), mesh, (S0, R)))
    devices = xr.global_runtime_device_attributes()
    rows = {int(d["name"].rpartition(":")[2]): d["slice_index"] for d in devices}
    expected = [[[3 * rows[i] + column for column in range(3)]] for i in range(topology.total)]
    assert [shard.tolist() for shard in shards] == expected


@pytest.mark.environment(XLA_DISABLE_FUNCTIONALIZATION="1")
def test_training_steps(topology: Topology, start_runtime: StartRuntime) -> None:
    """Data parallel across the slices, tensor parallel inside them."""
    mesh = ranks((topology.slices, topology.devices))
    two_steps = partial(train, steps=2)
    expected = reference(mesh, two_steps)
    start_runtime(spmd=True)
    assert_same(on_xla(mesh, annotated, two_steps), expected)
