"""JAX's meshes by topology: which chips lie along an axis.

The oracle is where each chip is, as its device says: a mesh has each device once, an axis has whole
dimensions of the torus where it can, and a ring goes over links.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental import mesh_utils

from harness.model.topology import Topology
from suites.spmd_specs.shapes import all_mesh_shapes

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.upstream("pytorch/xla#7102"),
    pytest.mark.skipif(
        jax.__version_info__ < (0, 7), reason="JAX before 0.7 arranges no cores of TPU7x"
    ),
]
TORUSES = ("v4:2x2x4", "v4:4x4x4")
PLANES = ("v5e:2x4", "v5e:4x4")


def position(device: Any) -> tuple[int, ...]:
    """Return the chip's coordinates, and which of its cores the device is."""
    return (*device.coords, device.core_on_chip)


def lengths(devices: Any) -> tuple[int, ...]:
    """Return how many positions the devices have in each dimension."""
    columns = zip(*(position(device) for device in devices), strict=True)
    return tuple(len(set(column)) for column in columns)


def lines(mesh: np.ndarray, axis: int) -> np.ndarray:
    """Return the devices along the axis, for each place along the others."""
    return np.moveaxis(mesh, axis, -1).reshape(-1, mesh.shape[axis])


def whole_of(box: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[int, int]:
    """Return how many chips of a box are along whole dimensions, and how many these are."""
    whole = [n for n, size in zip(box, sizes, strict=True) if n == size > 1]
    return math.prod(whole), len(whole)


@pytest.mark.topologies(*PLANES, *TORUSES, "v5p:2x2x2", "tpu7x:2x2x1", "tpu7x:2x2x2")
def test_each_device_once(topology: Topology, subtests: pytest.Subtests) -> None:
    shapes = [shape for rank in (1, 2, 3) for shape in all_mesh_shapes(topology.total, rank)]
    for shape in shapes:
        with subtests.test(shape=shape):
            mesh = mesh_utils.create_device_mesh(shape, allow_split_physical_axes=True)
            assert mesh.shape == shape
            assert set(mesh.flat) == set(jax.devices())
            assert jax.make_mesh((len(jax.devices()),), ("x",)).devices.shape == (topology.total,)


@pytest.mark.topologies(*TORUSES, "v5e:4x4")
def test_axes_of_whole_dimensions(topology: Topology, subtests: pytest.Subtests) -> None:
    """Each axis has whole dimensions, the last one as many as can be; else the shape is refused.

    Where dimensions may be split, the last axis, of which programs use most, has as much of whole
    dimensions as before.
    """
    sizes = lengths(jax.devices())
    for shape in all_mesh_shapes(topology.total, 2) + all_mesh_shapes(topology.total, 3):
        whole = [
            dimensions
            for dimensions in itertools.product(range(len(shape)), repeat=len(sizes))
            if all(
                math.prod(n for n, at in zip(sizes, dimensions, strict=True) if at == axis) == size
                for axis, size in enumerate(shape)
            )
        ]
        with subtests.test(shape=shape):
            split = mesh_utils.create_device_mesh(shape, allow_split_physical_axes=True)
            if not whole:
                with pytest.raises(NotImplementedError):
                    mesh_utils.create_device_mesh(shape)
                for axis in range(len(shape)):
                    for line in lines(split, axis):
                        assert math.prod(lengths(line)) == len(line), "a box"
                boxes = [
                    box
                    for box in itertools.product(*(range(1, size + 1) for size in sizes))
                    if math.prod(box) == shape[-1]
                    and not any(size % n for n, size in zip(box, sizes, strict=True))
                ]
                (last, *_) = lines(split, len(shape) - 1)
                assert whole_of(lengths(last), sizes) == max(whole_of(box, sizes) for box in boxes)
                continue
            if shape == (2, 2, 4):
                continue  # of which test_the_torus_itself asks
            mesh = mesh_utils.create_device_mesh(shape)
            assert (mesh == split).all()
            for axis in range(len(shape)):
                for line in lines(mesh, axis):
                    assert all(n in (1, size) for n, size in zip(lengths(line), sizes, strict=True))
                    if 4 in shape and len(line) == 4 == max(lengths(line)):
                        places = [position(device) for device in line]
                        assert places == sorted(places), "from neighbour to neighbour"
            most = max(
                sum(at == len(shape) - 1 and n > 1 for n, at in zip(sizes, d, strict=True))
                for d in whole
            )
            (last, *_) = lines(mesh, len(shape) - 1)
            assert sum(n > 1 for n in lengths(last)) == most


def steps(start: Any, end: Any) -> int:
    """Return how many chips away a device is from another, without links around the torus."""
    return sum(abs(a - b) for a, b in zip(start.coords, end.coords, strict=True))


@pytest.mark.topologies("v4:2x2x1", "v5e:2x2", "v5e:2x4", "v5e:4x4", "tpu7x:2x2x1")
@pytest.mark.upstream("jax-ml/jax#20305")
def test_one_axis_is_a_ring(topology: Topology) -> None:
    """From each device to the next, and from the last to the first, it is a link or none."""
    for shape in ((topology.total,), (1, topology.total), (topology.total, 1)):
        ring = list(mesh_utils.create_device_mesh(shape).flat)
        ways = [steps(*pair) for pair in zip(ring, [*ring[1:], ring[0]], strict=True)]
        assert max(ways) == 1, ways


@pytest.mark.topologies(*TORUSES)
def test_the_torus_itself(topology: Topology) -> None:
    """A mesh of the slice's own shape has each chip where it is."""
    shape = lengths(jax.devices())[:3]
    for place, device in np.ndenumerate(mesh_utils.create_device_mesh(shape)):
        assert sorted(place) == sorted(device.coords), topology


@pytest.mark.topologies("v4:4x4x4")
def test_next_axis_has_links_of_its_own() -> None:
    """Where the last axis has a part of a dimension, the one before has links that it leaves."""
    mesh = mesh_utils.create_device_mesh((4, 2, 8), allow_split_physical_axes=True)
    next_to_last, last = (lengths(next(iter(lines(mesh, axis)))) for axis in (1, 2))
    assert all(n == 1 for n, other in zip(next_to_last, last, strict=True) if other > 1)


@pytest.mark.topologies("v4:4x4x4")
def test_each_host_has_a_block(subtests: pytest.Subtests) -> None:
    """With contiguous submeshes the four chips of a host lie side by side, or it is refused."""
    for shape in ((16, 4), (16, 1, 4)):
        with subtests.test(shape=shape):
            mesh = mesh_utils.create_device_mesh(shape, contiguous_submeshes=True)
            blocks: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
            for place, device in np.ndenumerate(mesh):
                x, y, z = device.coords
                blocks.setdefault((x // 2, y // 2, z), []).append(place)
            for places in blocks.values():
                extents = [max(column) - min(column) + 1 for column in zip(*places, strict=True)]
                assert math.prod(extents) == len(places) == 4
    with subtests.test("refused"), pytest.raises(ValueError, match="contiguous"):
        mesh_utils.create_device_mesh((2, 32), contiguous_submeshes=True)


@pytest.mark.topologies("v4:2x2x4")
def test_some_of_the_chips(subtests: pytest.Subtests) -> None:
    """A cuboid anywhere in the slice is a mesh, and chips with a hole between them are not."""
    devices = jax.devices()
    upper = [device for device in devices if device.coords[2] >= 2]
    for given in (upper, devices[:8], devices[5:6]):
        shape = (2, len(given) // 2) if len(given) > 1 else (1, 1)
        with subtests.test(given=len(given)):
            mesh = mesh_utils.create_device_mesh(shape, given)
            assert set(mesh.flat) == set(given)
            made = jax.make_mesh(shape, ("x", "y"), devices=given)
            assert (made.devices == mesh).all()
    with subtests.test("the first ones"):
        assert set(jax.make_mesh((2, 4), ("x", "y")).devices.flat) == set(devices[:8])
    for wrong in ((4,), (3, 5), ("a", 2)):
        with subtests.test(wrong=wrong), pytest.raises(ValueError):
            mesh_utils.create_device_mesh(wrong, devices)
    for size in (32, "a"):
        with subtests.test(size=size), pytest.raises(ValueError):
            jax.make_mesh((size,), ("x",))
    with subtests.test("a hole"), pytest.raises(AssertionError):
        mesh_utils.create_device_mesh((2,), [devices[0], devices[3]])
    with subtests.test("processes"):
        mesh = mesh_utils.create_hybrid_device_mesh((4, 4), (1, 1), process_is_granule=True)
        assert (mesh == mesh_utils.create_device_mesh((4, 4))).all()
        with pytest.raises(ValueError):
            mesh_utils.create_hybrid_device_mesh((4, 2), (1, 2), process_is_granule=True)


@pytest.mark.topologies("v5e:4x4")
def test_three_by_four_chips(subtests: pytest.Subtests) -> None:
    """Sizes that are no powers of two: each device once, along lines that are boxes of chips."""
    given = [device for device in jax.devices() if device.coords[0] < 3]
    for shape in ((12,), (3, 4), (4, 3), (6, 2), (2, 6), (2, 2, 3), (3, 2, 2)):
        with subtests.test(shape=shape):
            mesh = mesh_utils.create_device_mesh(shape, given, allow_split_physical_axes=True)
            assert set(mesh.flat) == set(given)
            for axis in range(len(shape)):
                for line in lines(mesh, axis):
                    assert math.prod(lengths(line)) == len(line)
