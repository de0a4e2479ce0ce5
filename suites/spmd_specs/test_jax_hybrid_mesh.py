"""JAX's hybrid meshes: slices along some axes, the chips of a slice along the others.

Slices are those of a TPU, or what NVLink connects. The oracle is the number of its slice that each
device says, and NumPy.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import jax
import numpy as np
import pytest
from jax import lax
from jax.experimental import mesh_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from harness.model.topology import Topology
from suites.shared.jax_releases import checked, unreadable_before_0_4_30
from suites.spmd_specs.shapes import all_mesh_shapes

pytestmark = [
    pytest.mark.lanes("virtual-*"),
    pytest.mark.topologies("2x2", "2x4", "4x2", "2xv4:2x2x2"),
    pytest.mark.upstream("pytorch/xla#7102"),
    unreadable_before_0_4_30,
]


def hybrid(topology: Topology) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], np.ndarray]]:
    """Every mesh shape of a slice with every one of the slices, and their devices."""
    inner, outer = (all_mesh_shapes(size, 2) for size in (topology.devices, topology.slices))
    for chips, slices in itertools.product(inner, outer):
        yield chips, slices, mesh_utils.create_hybrid_device_mesh(chips, slices)


def test_each_block_is_a_slice(topology: Topology, subtests: pytest.Subtests) -> None:
    for chips, slices, devices in hybrid(topology):
        with subtests.test(chips=chips, slices=slices):
            assert devices.shape == tuple(np.multiply(chips, slices))
            assert len({device.id for device in devices.flat}) == topology.total
            blocks: dict[tuple[int, ...], set[int]] = {}
            for place, device in np.ndenumerate(devices):
                block = tuple(np.floor_divide(place, chips))
                blocks.setdefault(block, set()).add(device.slice_index)
            assert all(len(slices) == 1 for slices in blocks.values()), blocks
            assert len(set.union(*blocks.values())) == topology.slices


@pytest.mark.parametrize("axis", [0, 1])
def test_sum_along_an_axis(topology: Topology, subtests: pytest.Subtests, axis: int) -> None:
    """Over slices, chips or both, as the shape has it."""
    names = ("x", "y")
    for chips, slices, devices in hybrid(topology):
        with subtests.test(chips=chips, slices=slices):
            mesh, spec = Mesh(devices, names), PartitionSpec(*names)
            left = PartitionSpec(*(None if n == axis else name for n, name in enumerate(names)))
            value = np.arange(topology.total, dtype=np.float32).reshape(devices.shape)
            summed = checked(lambda part: lax.psum(part, names[axis]), mesh, (spec,), left)
            sums = jax.jit(summed)(jax.device_put(value, NamedSharding(mesh, spec)))
            np.testing.assert_array_equal(sums, value.sum(axis, keepdims=True))


@pytest.mark.lanes("virtual-gpu")
@pytest.mark.topologies("2x4", "gb200:8")
@pytest.mark.upstream("netket/netket#2260", "jax-ml/jax#37863")
def test_plain_mesh_over_nodes(topology: Topology) -> None:
    """As programs make it of all GPUs of a job; two nodes of a rack are one NVLink domain."""
    mesh = jax.make_mesh((topology.total,), ("x",))
    spec, value = PartitionSpec("x"), np.arange(topology.total, dtype=np.float32)
    total = checked(lambda part: lax.psum(part, "x"), mesh, (spec,), PartitionSpec())
    summed = jax.jit(total)(jax.device_put(value, NamedSharding(mesh, spec)))
    np.testing.assert_array_equal(summed, value.sum(keepdims=True))
