"""Flash attention sharded over the slices and devices of a mesh computes what one device does."""

import numpy as np
import pytest
import torch
import torch_xla
import torch_xla.distributed.spmd as xs

from harness.model.topology import Topology
from harness.session.fixtures import StartRuntime
from suites.multislice_flash_attention.kernels import assert_step
from suites.multislice_flash_attention.problems import (
    Problem,
    assert_close,
    expected,
    flash,
    leaves_on_tpu,
)

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.upstream("pytorch/xla#8812", "pytorch/xla#8850"),
]
Spec = tuple[str | tuple[str, ...] | None, ...]
SPECS: dict[str, Spec] = {
    "batch": ("data", None, None, None),
    "heads": (None, "model", None, None),
    "batch-heads": ("data", "model", None, None),
    "batch-over-both": (("data", "model"), None, None, None),
}
SPEC = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)


def hybrid_mesh(topology: Topology) -> xs.Mesh:
    """Slices along "data", each slice's devices along "model"."""
    return xs.HybridMesh(
        ici_mesh_shape=(1, topology.devices),
        dcn_mesh_shape=(topology.slices, 1),
        axis_names=("data", "model"),
    )


@pytest.mark.long
@SPEC
@pytest.mark.topologies("2x2")
def test_backward(topology: Topology, start_runtime: StartRuntime, spec: Spec) -> None:
    start_runtime(spmd=True)
    assert_step(Problem(batch=4), partition_spec=spec, mesh=hybrid_mesh(topology))


@pytest.mark.long
@pytest.mark.parametrize("mask", ["causal", "segments", "bias"])
@pytest.mark.topologies("2x2")
def test_masks(topology: Topology, start_runtime: StartRuntime, mask: str) -> None:
    start_runtime(spmd=True)
    mesh = hybrid_mesh(topology)
    assert_step(Problem(batch=2, **{mask: True}), partition_spec=SPECS["batch-heads"], mesh=mesh)


@pytest.mark.topologies("2x1", "4x2", "1x4")
def test_topologies(topology: Topology, start_runtime: StartRuntime) -> None:
    start_runtime(spmd=True)
    problem = Problem(batch=topology.slices, heads=topology.devices, causal=True)
    mesh = hybrid_mesh(topology)
    # Chips are numbered along x, and the mesh's last axis goes along y first.
    x, y, _ = topology.bounds
    chips = np.arange(topology.total).reshape(topology.slices, y, x)
    assert np.array_equal(mesh.device_ids, chips.swapaxes(1, 2).ravel())
    assert_step(problem, partition_spec=SPECS["batch-heads"], mesh=mesh)


@pytest.mark.long
@pytest.mark.topologies("2x2")
def test_bfloat16(topology: Topology, start_runtime: StartRuntime) -> None:
    start_runtime(spmd=True)
    problem = Problem(batch=2, dtype=torch.bfloat16, causal=True)
    assert_step(problem, partition_spec=SPECS["batch-heads"], mesh=hybrid_mesh(topology))


@pytest.mark.topologies("2x2")
def test_global_mesh(topology: Topology, start_runtime: StartRuntime) -> None:
    start_runtime(spmd=True)
    xs.set_global_mesh(hybrid_mesh(topology))
    assert_step(Problem(batch=2), partition_spec=SPECS["batch-heads"])


@pytest.mark.topologies("2x2")
def test_own_mesh_beside_a_global_one(topology: Topology, start_runtime: StartRuntime) -> None:
    """The mesh that the call names counts."""
    start_runtime(spmd=True)
    xs.set_global_mesh(xs.Mesh(np.arange(4), (4,), ("all",)))
    assert_step(Problem(batch=2), partition_spec=SPECS["batch-heads"], mesh=hybrid_mesh(topology))


@pytest.mark.long
@pytest.mark.topologies("2x2")
def test_mesh_in_another_order(start_runtime: StartRuntime) -> None:
    """Devices of both slices along each axis."""
    start_runtime(spmd=True)
    mesh = xs.Mesh(np.array([3, 0, 2, 1]), (2, 2), ("data", "model"))
    assert_step(Problem(batch=2, causal=True), partition_spec=SPECS["batch-heads"], mesh=mesh)


@pytest.mark.topologies("2x2")
def test_result_is_sharded(topology: Topology, start_runtime: StartRuntime) -> None:
    """The result has the shards of the partition spec."""
    start_runtime(spmd=True)
    problem = Problem(batch=2)
    leaves = {name: leaf.detach() for name, leaf in leaves_on_tpu(problem).items()}
    sharding = {"partition_spec": SPECS["batch-heads"], "mesh": hybrid_mesh(topology)}
    result = flash(problem, leaves, **sharding)
    torch_xla.sync()
    assert "devices=[2,2,1,1]" in torch_xla._XLAC._get_xla_sharding_spec(result)


@pytest.mark.topologies("2x2")
def test_inputs_sharded_before(topology: Topology, start_runtime: StartRuntime) -> None:
    """Inputs that already have the spec's sharding, as a model's activations do."""
    start_runtime(spmd=True)
    mesh, problem = hybrid_mesh(topology), Problem(batch=2, causal=True)
    leaves = {name: leaf.detach() for name, leaf in leaves_on_tpu(problem).items()}
    for name in "qkv":
        xs.mark_sharding(leaves[name], mesh, SPECS["batch-heads"])
    result = flash(problem, leaves, partition_spec=SPECS["batch-heads"], mesh=mesh)
    assert_close(result, expected(problem)[0], problem.dtype, "output")


@pytest.mark.topologies("2x1")
def test_batch_that_does_not_divide(topology: Topology, start_runtime: StartRuntime) -> None:
    """Three batch elements over two slices: their attention, and no fourth one."""
    start_runtime(spmd=True)
    problem = Problem(batch=3)
    leaves = {name: leaf.detach() for name, leaf in leaves_on_tpu(problem).items()}
    sharding = {"partition_spec": SPECS["batch"], "mesh": hybrid_mesh(topology)}
    result = flash(problem, leaves, **sharding)
    assert_close(result, expected(problem)[0], problem.dtype, "output")
