"""HybridMesh: slices along some axes, the chips of a slice along the others.

Only a TPU has slices, and chips with coordinates. A CPU has neither (HybridMesh asserts that the
hardware is a TPU), so these cases run on lane virtual-tpu only. The oracles are the topology,
NumPy's Kronecker product, and JAX's mesh_utils, which HybridMesh was copied from.
"""

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch_xla.experimental.spmd_fully_sharded_data_parallel import (
    SpmdFullyShardedDataParallel as FSDPv2,
)

from harness.model.topology import Topology
from harness.oracles.sharding import Layout, Shape, Spec, check_placement, placed_shards
from harness.session.fixtures import StartRuntime
from suites.spmd_specs.meshes import NAMES, check_product, numbered
from suites.spmd_specs.shapes import all_mesh_shapes
from suites.spmd_specs.test_computed_placements import product_error
from suites.spmd_specs.twins import AXES, SGD, Twins, models

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.upstream("pytorch/xla#5478", "pytorch/xla#7102"),
]


def _shapes(topology: Topology, rank: int) -> Iterator[tuple[Shape, Shape]]:
    """Every mesh shape of a slice with every mesh shape of the slices."""
    inner, outer = (all_mesh_shapes(size, rank) for size in (topology.devices, topology.slices))
    return itertools.product(inner, outer)


def _hybrid(
    inner: Shape, outer: Shape | None, names: tuple[str, ...] | None = None
) -> xs.HybridMesh:
    return xs.HybridMesh(ici_mesh_shape=inner, dcn_mesh_shape=outer, axis_names=names)


def _check_blocks(mesh: xs.HybridMesh, inner: Shape, outer: Shape, topology: Topology) -> None:
    expected = np.kron(np.arange(topology.slices).reshape(outer), np.ones(inner, int))
    got = mesh.get_logical_mesh()
    assert sorted(got.flat) == list(range(topology.total))
    np.testing.assert_array_equal(got // topology.devices, expected)


def _layout(mesh: xs.HybridMesh) -> Layout:
    return Layout(mesh.mesh_shape, tuple(int(i) for i in mesh.device_ids), mesh.axis_names)


@pytest.mark.topologies(4, "2x2", "2x4", "4x2", "2xv4:2x2x2")
def test_devices_know_their_place(
    topology: Topology, start_runtime: StartRuntime, subtests: pytest.Subtests
) -> None:
    """A chip has coordinates in its slice; on several slices, also the slice's number."""
    start_runtime(spmd=True)
    devices = xr.global_runtime_device_attributes()
    assert [device["name"] for device in devices] == [f"TPU:{i}" for i in range(topology.total)]
    slices = [device.get("slice_index") for device in devices]
    if topology.slices == 1:
        assert slices == [None] * topology.devices
    else:
        assert slices == [i // topology.devices for i in range(topology.total)]
    coordinates = np.array([device["coords"] for device in devices])
    for number, chips in enumerate(np.split(coordinates, topology.slices)):
        with subtests.test(slice=number):
            box = np.prod(chips.max(axis=0) + 1)
            assert len(np.unique(chips, axis=0)) == topology.devices == box, f"no box: {chips}"


@pytest.mark.topologies("2x2", "2x4", "4x2", "2xv4:2x2x2")
@pytest.mark.parametrize("rank", [1, 2, 3], ids="mesh{}d".format)
def test_blocks_are_slices(
    topology: Topology, start_runtime: StartRuntime, rank: int, subtests: pytest.Subtests
) -> None:
    """Along each axis the slice changes once per block of chips, slices in row-major order."""
    start_runtime(spmd=True)
    for inner, outer in _shapes(topology, rank):
        with subtests.test(inner=inner, outer=outer):
            _check_blocks(_hybrid(inner, outer), inner, outer, topology)


@pytest.mark.topologies(4, 8, "v4:2x2x2")
@pytest.mark.parametrize("rank", [1, 2, 3], ids="mesh{}d".format)
def test_one_slice(
    topology: Topology, start_runtime: StartRuntime, rank: int, subtests: pytest.Subtests
) -> None:
    start_runtime(spmd=True)
    for inner, _ in _shapes(topology, rank):
        with subtests.test(inner=inner):
            mesh = xs.HybridMesh(ici_mesh_shape=inner)
            assert mesh.get_logical_mesh().shape == inner
            assert sorted(mesh.device_ids) == list(range(topology.devices))


@pytest.mark.topologies("2xv4:2x2x1", "2xv4:2x2x2", "4xv5p:2x2x1")
@pytest.mark.parametrize("rank", [1, 2, 3], ids="mesh{}d".format)
def test_order_is_that_of_jax(
    topology: Topology, start_runtime: StartRuntime, rank: int, subtests: pytest.Subtests
) -> None:
    """On a torus of three dimensions; for v5e and v6e JAX has learnt to go round in a ring."""
    start_runtime(spmd=True)
    from jax.experimental import mesh_utils

    for inner, outer in _shapes(topology, rank):
        with subtests.test(inner=inner, outer=outer):
            devices = mesh_utils.create_hybrid_device_mesh(
                inner, outer, allow_split_physical_axes=True
            )
            expected = np.vectorize(lambda device: device.id)(devices)
            np.testing.assert_array_equal(_hybrid(inner, outer).get_logical_mesh(), expected)


@pytest.mark.topologies("2x2", "2x4", "4x2")
def test_shards_stay_in_their_slice(topology: Topology, start_runtime: StartRuntime) -> None:
    """Rows over the slices, columns over the chips: slice k holds the k-th rows, and no others."""
    start_runtime(spmd=True)
    mesh = _hybrid((1, topology.devices), (topology.slices, 1), ("data", "model"))
    value = numbered((2 * topology.slices, 8))
    tensor = value.to("xla")
    xs.mark_sharding(tensor, mesh, ("data", "model"))
    rows = {device: shard.bounds[0] for device, shard in placed_shards(tensor).items()}
    firsts = {device: 2 * (device // topology.devices) for device in range(topology.total)}
    assert rows == {device: (first, first + 2) for device, first in firsts.items()}
    check_placement(tensor, value.numpy(), _layout(mesh), ("data", "model"))


@pytest.mark.topologies("2x2", "2x4", "4x2")
@pytest.mark.parametrize("rank", [1, 2, 3], ids="mesh{}d".format)
def test_placement(
    topology: Topology, start_runtime: StartRuntime, rank: int, subtests: pytest.Subtests
) -> None:
    """All axes on one dimension, in either order, and each on its own."""
    start_runtime(spmd=True)
    names = NAMES[:rank]
    value = numbered((16, 3, 8))
    specs: tuple[Spec, ...] = (
        (names, None, None),
        (None, None, names[::-1]),
        (names[0], None, names[1:]),
    )
    for (inner, outer), spec in itertools.product(_shapes(topology, rank), specs):
        with subtests.test(inner=inner, outer=outer, spec=spec):
            mesh = _hybrid(inner, outer, names)
            tensor = value.to("xla")
            xs.mark_sharding(tensor, mesh, tuple(entry or None for entry in spec))
            check_placement(tensor, value.numpy(), _layout(mesh), spec)


MESHES: dict[str, Callable[[int, int], tuple[Shape, Shape]]] = {
    # The mesh of HybridMesh's own docstring: x over the slices, y over the chips of a slice.
    "x-across-y-within": lambda slices, chips: ((1, chips), (slices, 1)),
    "x-within-y-across": lambda slices, chips: ((chips, 1), (1, slices)),
    "y-within-and-across": lambda slices, chips: ((1, chips), (1, slices)),
    "both-within": lambda slices, chips: ((2, chips // 2), (slices, 1)),
}


@pytest.mark.topologies("2x2", "2x4", "4x2", "2xv4:2x2x2")
@pytest.mark.parametrize("mesh", MESHES)
def test_product(topology: Topology, start_runtime: StartRuntime, mesh: str) -> None:
    """A matrix product whose sum goes over x has the same numbers on every mesh."""
    start_runtime(spmd=True)
    inner, outer = MESHES[mesh](topology.slices, topology.devices)
    hybrid = _hybrid(inner, outer, ("x", "y"))
    _check_blocks(hybrid, inner, outer, topology)
    layout = _layout(hybrid)
    error = product_error(layout, ((None, "x"), ("x", "y"), ("y", "x")))
    check_product(error, f"the product over devices {layout.device_ids}")


@pytest.mark.topologies("2x2", "2x4", "4x2")
@pytest.mark.filterwarnings("ignore:Full backward hook is firing")  # FSDPv2's own hook
@pytest.mark.parametrize("across", ["data", "fsdp"])
def test_train_step(topology: Topology, start_runtime: StartRuntime, across: str) -> None:
    """FSDPv2 in each slice and data parallel across them, or FSDPv2 over all chips."""
    start_runtime(spmd=True)
    outer = (topology.slices, 1) if across == "data" else (1, topology.slices)
    mesh = _hybrid((1, topology.devices), outer, AXES)
    inner, reference = models()
    twins = Twins(FSDPv2(inner, mesh=mesh, extra_data_axis="data"), reference, _layout(mesh))
    twins.check()
    twins.train(SGD)
    twins.check()


WRONG = {
    "no-slices": ((1, 4), None, "Provide dcn_mesh_shape to create a mesh for multislice"),
    "one-slice": ((1, 4), (1, 1), "Provide dcn_mesh_shape to create a mesh for multislice"),
    "too-many-slices": ((1, 2), (4, 1), "Number of slices 2 must equal the product"),
    "too-few-chips": ((1, 2), (2, 1), "Number of devices 4 must equal the product"),
}


@pytest.mark.topologies("2x4")
@pytest.mark.parametrize("case", WRONG)
def test_wrong_shape(start_runtime: StartRuntime, case: str) -> None:
    start_runtime(spmd=True)
    inner, outer, message = WRONG[case]
    with pytest.raises(ValueError, match=message):
        _hybrid(inner, outer)


@pytest.mark.topologies(4)
def test_slices_that_are_not_there(start_runtime: StartRuntime) -> None:
    start_runtime(spmd=True)
    with pytest.raises(ValueError, match="Invalid dcn_mesh_shape for single slice mesh"):
        _hybrid((1, 2), (2, 1))
