"""Meshes of TorchTPU that follow the topology: which rank is where when there are several slices.

A mesh axis that is split over slices makes its collectives use the slower network between them.
Whether a mesh is laid out well inside of a slice only hardware shows.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from harness.job.ranks import run_ranks
from harness.lanes.events import EventLog
from harness.model.topology import Target, Topology
from suites.process_groups.jobs import check
from suites.shared.backends import BACKENDS
from suites.shared.tensors import to_numpy, to_torch
from suites.shared.values import ranks_of

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.frameworks("torch_tpu"),
    pytest.mark.upstream("pytorch/xla#8812"),
]
Shape = tuple[int, ...]
Options = dict[str, bool]


@dataclass(frozen=True)
class Layout:
    """A mesh as it is asked for, and the parts that it must have along each axis.

    ``split`` is None where torch_tpu chooses the axis; ``parts`` is the shape that slices form.
    """

    shape: Shape
    split: Shape | None
    parts: Shape


LAYOUTS = {
    "rows": Layout((2, 4), None, (2, 1)),
    "columns": Layout((2, 4), (1, 2), (1, 2)),
    "outermost": Layout((4, 2), None, (2, 1)),
    "behind-trivial": Layout((1, 2, 4), None, (1, 2, 1)),
    "innermost": Layout((2, 2, 2), (1, 1, 2), (1, 1, 2)),
    "line": Layout((8,), None, (2,)),
}
# What is asked of two slices of two chips, and what torch_tpu must say.
REFUSED: dict[str, tuple[Shape, Shape | None, str]] = {
    "dimensions": ((2, 2), (2,), "must have the same number of dimensions"),
    "slices": ((2, 2), (1, 1), r"covers 1 slices, but the job has 2 \(slice_index values \[0, 1\]"),
    "indivisible": ((1, 4), (2, 1), r"do not divide evenly, as axis: \(mesh, dcn\): \{0: \(1, 2\)"),
    "devices": ((2, 4), (2, 1), "has 8 elements but the job has 4 devices across 2 slices"),
    "trivial": ((1, 1), None, "every axis has extent 1"),
    "outermost": (
        (3, 4),
        None,
        r"non-trivial axis \(axis 0, extent 3\) is not divisible",
    ),
}


@pytest.mark.topologies("2x4@chip")
def test_layouts(xla_target: Target, tpu_events: EventLog, subtests: pytest.Subtests) -> None:
    """Each part has the ranks of one slice, all ranks have the same mesh, and sums are right."""
    topology, backend = xla_target.topology, BACKENDS[xla_target.framework]
    inputs = ranks_of(topology.total, (3,), "float32")

    def ask(number: int) -> dict[str, tuple[np.ndarray, list[np.ndarray]]]:
        device = backend.join()
        meshes = {name: _asked(layout, inputs[number], device) for name, layout in LAYOUTS.items()}
        backend.settle()
        assert _guard() == b"true"  # no later client of this process discovers again
        return meshes

    ranks = run_ranks(ask, topology)
    tpu_events.expect_discoveries(1)
    assert len(tpu_events.read().of("discovered")) == topology.total
    for name, layout in LAYOUTS.items():
        with subtests.test(name):
            meshes = [of_rank[name][0] for of_rank in ranks]
            assert all(np.array_equal(mesh, meshes[0]) for mesh in meshes)
            assert meshes[0].shape == layout.shape
            assert sorted(meshes[0].flat) == list(range(topology.total))
            _check_slices(meshes[0], topology, layout.parts)
            for axis in range(len(layout.shape)):
                answers = [of_rank[name][1][axis] for of_rank in ranks]
                check(answers, _sums(inputs, meshes[0], axis))


@pytest.mark.topologies("2x2@chip")
def test_refusals(xla_target: Target, subtests: pytest.Subtests) -> None:
    shapes = {name: (shape, split) for name, (shape, split, _) in REFUSED.items()}
    for messages in run_ranks(_refusals(xla_target, shapes), xla_target.topology):
        for name, (_, _, expected) in REFUSED.items():
            with subtests.test(name):
                assert re.match(f"ValueError: .*{expected}", messages[name])


@pytest.mark.topologies("4@chip")
def test_split_of_one_slice(xla_target: Target) -> None:
    """Devices of a job with one slice have no slice index, as on hardware."""
    shapes = {"split": ((2, 2), (2, 1)), "of-one": ((2, 2), (1, 1))}
    for messages in run_ranks(_refusals(xla_target, shapes), xla_target.topology):
        assert messages["of-one"] == ""
        assert messages["split"].startswith("RuntimeError: A multi-slice layout was requested")
        assert "do not expose a 'slice_index' attribute" in messages["split"]


@pytest.mark.topologies("2x2@chip")
def test_ranks_in_another_order(xla_target: Target) -> None:
    """The second slice has the first ranks: a mesh begins with the first slice's ranks anyway."""
    pytest.importorskip("jax")  # for its mesh
    topology, backend = xla_target.topology, BACKENDS[xla_target.framework]
    half = topology.devices

    def ask(number: int) -> tuple[list[list[int]], list[int], float, list[list[int]]]:
        from torch_tpu._internal.distributed.device_mesh import get_device_assignment

        rank = (number + half) % topology.total
        os.environ["RANK"] = str(rank)
        assert get_device_assignment() == []
        x = torch.full((1,), 2.0**rank, device=backend.join())
        mesh = DeviceMesh("tpu", _mesh((2, half), None))
        dist.all_reduce(x, group=mesh.get_group(1))
        chips = [[device.id for device in torch.tpu.pallas.get_pallas_mesh("ranks").devices]]
        chips += map(
            get_device_assignment, (None, mesh.get_group(1), dist.new_group(backend="gloo"))
        )
        backend.settle()
        return mesh.mesh.tolist(), [*(mesh.get_coordinate() or ())], x.item(), chips

    for number, answers in enumerate(run_ranks(ask, topology)):
        of_slice = number // half
        chips = [[2, 3, 0, 1], [2, 3, 0, 1], [2 * of_slice, 2 * of_slice + 1], []]
        total = [12.0, 3.0][of_slice]
        assert answers == ([[2, 3], [0, 1]], [of_slice, number % half], total, chips)


def _there_and_back(index: np.ndarray) -> tuple[np.ndarray | int, ...]:
    """Return the chip on a grid of 2 x 4: two rows in order, then the other two from the end."""
    number = np.where(index < 4, index, 11 - index)
    return number % 2, number // 2, 0


# What is asked of one slice: the mesh's shape, options, and the chip of each index of the mesh, as
# (x, y, z); or that it is a ring of neighbours, or the error. The last axis of a mesh has the most
# traffic: it takes whole axes of the grid, and of a divided one the neighbours.
RING = "ring"
Chips = Callable[..., tuple[np.ndarray | int, ...]]
SPLIT = {"allow_split_physical_axes": True}
CONTIGUOUS = {"contiguous_submeshes": True}
PLACED: dict[str, dict[str, tuple[tuple[object, ...], Options, Chips | str]]] = {
    "v6e:2x2": {
        "ring": ((4,), {}, RING),
        "ring-of-rows": ((1, 4), {}, RING),
        "product": ((3,), {}, "Number of devices 4 must equal the product of mesh_shape"),
        "no-number": (("x",), {}, "should be a sequence of ints"),
    },
    # Rows of two there, and the same rows from right to left back: every other step is two chips.
    "v6e:2x4": {
        "line": ((8,), {}, _there_and_back),
        "line-and-back": ((2, 4), {}, lambda i, j: _there_and_back(4 * i + j)),
    },
    "v6e:4x4": {
        "ring": ((16,), {}, RING),
        "ring-behind-trivial": ((1, 16), {}, RING),
        "axes": ((4, 4), {}, lambda i, j: (j, i, 0)),
        "split": ((2, 2, 4), SPLIT, lambda i, j, k: (k, 2 * i + j, 0)),
        "split-of-halves": ((2, 8), SPLIT, lambda i, j: (j // 2, 2 * i + j % 2, 0)),
        "not-split": ((2, 2, 4), {}, "size 2 with remaining assignable mesh"),
        "contiguous": ((4, 4), CONTIGUOUS, "cannot create contiguous"),
    },
    "v5p:2x2x2": {"ring": ((8,), {}, RING), "last-ring": ((1, 8, 1), {}, RING)},
    "v4:2x2x4": {
        "axes": ((4, 4), {}, lambda i, j: (j // 2, j % 2, i)),
        "plane-first": ((2, 8), {}, lambda i, j: (j // 4, i, j % 4)),
        "all": ((16,), {}, lambda i: (i // 8, i // 4 % 2, i % 4)),
        "split": ((2, 2, 2, 2), SPLIT, lambda i, j, k, m: (m, k, 2 * i + j)),
        "split-into-unlike": ((8, 2), SPLIT, lambda i, j: (j, i // 4, i % 4)),
        "not-split": ((2, 2, 2, 2), {}, "size 2 with remaining assignable mesh"),
        "contiguous": ((4, 4), CONTIGUOUS, lambda i, j: (j // 2, j % 2, i)),
        "contiguous-behind-trivial": ((4, 1, 4), CONTIGUOUS, lambda i, _, k: (k // 2, k % 2, i)),
        "contiguous-of-two": ((2, 8), CONTIGUOUS, "Available mesh_shapes"),
    },
}


@pytest.mark.topologies(*(f"{grid}@chip" for grid in PLACED))
def test_places(xla_target: Target, subtests: pytest.Subtests) -> None:
    """Each index of a mesh has the chip that the grid gives it, or the mesh is a ring."""
    topology, backend = xla_target.topology, BACKENDS[xla_target.framework]
    requests = PLACED[topology.slice]

    def ask(_: int) -> dict[str, tuple[np.ndarray, str]]:
        backend.join()
        answers = {name: _placed(shape, options) for name, (shape, options, _) in requests.items()}
        backend.settle()
        return answers

    of_ranks = run_ranks(ask, topology)
    for name, (shape, _, expected) in requests.items():
        with subtests.test(name):
            mesh, error = of_ranks[0][name]
            assert all(np.array_equal(answers[name][0], mesh) for answers in of_ranks)
            if isinstance(expected, str) and expected != RING:
                assert expected in error
                continue
            assert (error, mesh.shape) == ("", shape)
            assert sorted(mesh.flat) == list(range(topology.total))
            places = np.stack(np.unravel_index(mesh, topology.bounds[::-1])[::-1], -1)
            if isinstance(expected, str):
                _check_ring(places)
            else:
                chips = expected(*np.indices(mesh.shape))
                assert np.array_equal(places, np.stack(np.broadcast_arrays(*chips), -1))


def _ring_of_pairs(index: np.ndarray) -> tuple[np.ndarray | int, ...]:
    """Return chip and device on rings of four chips of two devices, one ring for each plane."""
    chip = index % 8 // 2
    return (chip + 1) // 2 % 2, chip // 2, index // 8, index % 2


# What is asked of blocks of chips: the first chip, how many there are along x, y and z, the mesh's
# shape, and the chip of each index, counted from the first, or its device on a chip of two. A line
# of TPU7x is a ring of chips, in each plane of them.
WHOLE = (0, 0, 0), (4, 4, 4)
UNEVEN = (1, 1, 0), (3, 3, 4)
BLOCKS: dict[str, list[tuple[Shape, Shape, Shape, Chips]]] = {
    "tpu7x:2x2x1": [
        (*WHOLE, (8,), _ring_of_pairs),
        (*WHOLE, (2, 4), lambda i, j: _ring_of_pairs(4 * i + j)),
    ],
    "tpu7x:2x2x2": [(*WHOLE, (16,), _ring_of_pairs)],
    "tpu7x:2x4x4": [(*WHOLE, (2, 4, 8), lambda i, j, k: (k // 4, k % 4, j, i))],
    "v4:4x4x4": [
        (*UNEVEN, (6, 6), lambda i, j: (j // 2, i // 2, 2 * (i % 2) + j % 2)),
        (*UNEVEN, (18, 2), lambda i, j: (i // 6, i // 2 % 3, 2 * (i % 2) + j)),
        (*UNEVEN, (3, 6, 2), lambda i, j, k: (j // 2, i, 2 * (j % 2) + k)),
        ((0, 1, 2), (4, 3, 2), (2, 12), lambda i, j: (j // 3, j % 3, i)),
        ((2, 0, 0), (2, 4, 4), (2, 2, 8), lambda i, j, k: (k // 4, k % 4, 2 * i + j)),
    ],
}


@pytest.mark.topologies(*(f"{grid}@chip" for grid in BLOCKS))
def test_blocks(xla_target: Target) -> None:
    """Meshes of devices that no rank can have here, or not alone: JAX's, in one process."""
    jax = pytest.importorskip("jax")
    from torch_tpu._internal.distributed.device_utils import create_device_mesh

    for first, extents, shape, chips in BLOCKS[xla_target.topology.slice]:
        ends = np.add(first, extents)
        inside = [device for device in jax.devices() if (np.less(device.coords, ends)).all()]
        block = [device for device in inside if (np.subtract(device.coords, first) >= 0).all()]
        mesh = create_device_mesh(shape, block, allow_split_physical_axes=True)
        places = [(*np.subtract(device.coords, first), device.core_on_chip) for device in mesh.flat]
        expected = np.stack(np.broadcast_arrays(*chips(*np.indices(shape))), -1)
        own = np.array(places).reshape(*shape, 4)[..., : expected.shape[-1]]
        assert np.array_equal(own, expected), (shape, own)


def _guard() -> bytes | None:
    """SKIP_MEGASCALE_PJRT_CLIENT as C code reads it: torch_tpu sets it there, unseen by Python."""
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    value: bytes | None = getenv(b"SKIP_MEGASCALE_PJRT_CLIENT")
    return value


def _mesh(shape: Shape, split: Shape | None) -> torch.Tensor:
    mesh: torch.Tensor = torch.tpu.distributed.topology_aware_mesh(shape, dcn_mesh_shape=split)
    return mesh


def _asked(
    layout: Layout, value: np.ndarray, device: torch.device
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the mesh and this rank's sum over each of its axes."""
    mesh = DeviceMesh("tpu", _mesh(layout.shape, layout.split))
    sums = []
    for axis in range(len(layout.shape)):
        x = to_torch(value.copy()).to(device)
        dist.all_reduce(x, group=mesh.get_group(axis))
        sums.append(to_numpy(x))
    return mesh.mesh.numpy(), sums


def _check_slices(mesh: np.ndarray, topology: Topology, parts: Shape) -> None:
    """Check that a mesh of ranks has so many equal parts, in the order of the slices.

    Each is a ring of neighbours on its slice's grid of two rows.
    """
    inner = tuple(extent // part for extent, part in zip(mesh.shape, parts, strict=True))
    for number, part in enumerate(np.ndindex(parts)):
        of = tuple(slice(at * n, (at + 1) * n) for at, n in zip(part, inner, strict=True))
        assert set((mesh[of] // topology.devices).flat) == {number}
        _check_ring(np.stack(np.divmod(mesh[of] % topology.devices, 2), -1))


def _sums(inputs: list[np.ndarray], mesh: np.ndarray, axis: int) -> list[np.ndarray]:
    """Return each rank's sum over all ranks that differ from it on that axis alone."""
    of_rank: dict[int, np.ndarray] = {}
    for line in np.moveaxis(mesh, axis, -1).reshape(-1, mesh.shape[axis]):
        total = np.sum([inputs[rank] for rank in line], axis=0, dtype=inputs[0].dtype)
        of_rank |= {int(rank): total for rank in line}
    return [of_rank[rank] for rank in range(len(inputs))]


def _refusals(
    target: Target, shapes: Mapping[str, tuple[Shape, Shape | None]]
) -> Callable[[int], dict[str, str]]:
    """Return the error that a rank gets for each of these meshes, or "" where it gets the mesh."""

    def ask(_: int) -> dict[str, str]:
        backend = BACKENDS[target.framework]
        with pytest.raises(RuntimeError, match="process group must be initialized"):
            _mesh((2, 2), None)
        backend.join()
        messages = {}
        for name, (shape, split) in shapes.items():
            try:
                _mesh(shape, split)
                messages[name] = ""
            except (ValueError, RuntimeError) as error:
                messages[name] = f"{type(error).__name__}: {error}"
        backend.settle()
        return messages

    return ask


def _placed(shape: tuple[object, ...], options: Options) -> tuple[np.ndarray, str]:
    """Return the mesh, or no mesh and the error's text."""
    try:
        return torch.tpu.distributed.topology_aware_mesh(shape, **options).numpy(), ""
    except (ValueError, NotImplementedError) as error:
        return np.empty(0), str(error)


def _check_ring(places: np.ndarray) -> None:
    """Check that each chip is a neighbour of the one before it, and the first of the last."""
    line = places.reshape(-1, places.shape[-1])
    assert set(np.abs(line - np.roll(line, 1, 0)).sum(1)) == {1}
