"""``distribute_tensor`` on an "xla" mesh places the shards that DTensor's ranks hold."""

import itertools
import random
from collections.abc import Sequence

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh

from harness.model.topology import Topology
from harness.oracles import dtensor as oracle
from harness.oracles.torch_dtensor import Placement, Replicate, Shard, distribute_tensor
from harness.session.fixtures import StartRuntime
from suites.dtensor.layouts import (
    MESHES,
    S0,
    S1,
    S2,
    R,
    case_id,
    counting,
    placement_id,
    placements_id,
    quiet_upstream,
    ranks,
)
from suites.dtensor.shards import assert_held, host

pytestmark = [
    pytest.mark.lanes("cpu", "virtual-*"),
    pytest.mark.upstream("pytorch/xla#8534"),
    quiet_upstream,
]


def check(
    tensor: torch.Tensor,
    mesh: torch.Tensor,
    placements: Sequence[Placement] | None,
    start_runtime: StartRuntime,
    *,
    source_rank: int | None = 0,
) -> None:
    """Distribute the tensor over gloo and over XLA, and compare shard for shard."""
    held = oracle.distribute(tensor, mesh, placements, source_rank=source_rank)
    start_runtime(spmd=True)
    placed = distribute_tensor(tensor, DeviceMesh("xla", mesh), placements)
    label = "no placements" if placements is None else placements_id(placements)
    assert_held(placed, held, f"{label} of {list(tensor.shape)}")
    assert torch.equal(host(placed), tensor), "the global values changed"


@pytest.mark.topologies(4)
def test_annotates_the_shard(start_runtime: StartRuntime) -> None:
    """The placement of in_proj.weight in pytorch/xla#8534: rows over four devices."""
    check(counting((32, 10)), ranks((4,)), (S0,), start_runtime)


@pytest.mark.topologies(1, 2, 4, 8)
@pytest.mark.parametrize(
    ("shape", "placements"),
    [
        ((8, 8), (S0,)),
        ((8, 8), (S1,)),
        ((8, 8), (R,)),
        ((8, 8), (Shard(-1),)),
        ((2, 9, 3), (Shard(-2),)),
        ((7, 6), (S0,)),
        ((9, 5), (S1,)),
        ((3, 4), (S0,)),
        ((0, 4), (S0,)),
        ((), (R,)),
    ],
    ids=case_id,
)
def test_one_mesh_dimension(
    topology: Topology,
    start_runtime: StartRuntime,
    shape: tuple[int, ...],
    placements: Sequence[Placement],
) -> None:
    check(counting(shape), ranks((topology.total,)), placements, start_runtime)


@pytest.mark.topologies(4)
@pytest.mark.parametrize(
    ("shape", "placements"),
    [
        ((8, 8), (S0, S1)),
        ((8, 8), (S1, S0)),
        ((8, 8), (R, S0)),
        ((8, 8), (S1, R)),
        ((5, 7), (S1, S0)),
        ((3, 1, 5), (S2, S0)),
        ((6, 4), (Shard(-1), Shard(-2))),
    ],
    ids=case_id,
)
def test_two_mesh_dimensions(
    start_runtime: StartRuntime, shape: tuple[int, ...], placements: Sequence[Placement]
) -> None:
    check(counting(shape), ranks((2, 2)), placements, start_runtime)


@pytest.mark.topologies(4, 8)
@pytest.mark.parametrize(
    ("shape", "placements"),
    [
        ((8, 8), (S0, S0)),
        ((8, 8), (S1, S1)),
        ((8, 8), (Shard(-1), S1)),
        ((7, 10), (S0, S0)),
        ((7, 10), (S1, S1)),
    ],
    ids=case_id,
)
def test_two_mesh_dimensions_on_one_tensor_dimension(
    topology: Topology,
    start_runtime: StartRuntime,
    shape: tuple[int, ...],
    placements: Sequence[Placement],
) -> None:
    """DTensor splits the dimension over the first mesh dimension, each part over the second."""
    check(counting(shape), ranks((2, topology.total // 2)), placements, start_runtime)


@pytest.mark.topologies(8)
@pytest.mark.parametrize("placements", [(S0, S0, S0), (S0, R, S0), (S1, S0, S1)], ids=case_id)
def test_cube_with_a_tensor_dimension_sharded_twice(
    start_runtime: StartRuntime, placements: Sequence[Placement]
) -> None:
    check(counting((8, 8)), ranks((2, 2, 2)), placements, start_runtime)


@pytest.mark.topologies(4, 8)
@pytest.mark.parametrize("mesh", MESHES)
def test_every_placement(
    topology: Topology, start_runtime: StartRuntime, mesh: str, subtests: pytest.Subtests
) -> None:
    """Each way to shard distinct tensor dimensions over the mesh dimensions, or replicate."""
    rank_mesh = ranks(MESHES[mesh](topology.total))
    choices = [Replicate(), *map(Shard, range(3))]
    requests = [
        (counting((3, 5, 7)), placements)
        for placements in itertools.product(choices, repeat=rank_mesh.ndim)
        if _distinct(placements)
    ]
    reference = oracle.distribute_all(requests, rank_mesh)
    start_runtime(spmd=True)
    device_mesh = DeviceMesh("xla", rank_mesh)
    for (tensor, placements), held in zip(requests, reference, strict=True):
        with subtests.test(placements=placements_id(placements)):
            placed = distribute_tensor(tensor, device_mesh, placements)
            assert_held(placed, held, placements_id(placements))


def _distinct(placements: Sequence[Placement]) -> bool:
    dims = [placement.dim for placement in placements if isinstance(placement, Shard)]
    return len(dims) == len(set(dims))


@pytest.mark.topologies(4)
def test_empty_tensor_split_unevenly(start_runtime: StartRuntime) -> None:
    """No element anywhere, but five columns over four devices."""
    check(counting((0, 5)), ranks((4,)), (S1,), start_runtime)


@pytest.mark.topologies(2, 4, 8)
@pytest.mark.parametrize("mesh", ["line", "plane"])
def test_drawn_layouts(
    topology: Topology, start_runtime: StartRuntime, mesh: str, subtests: pytest.Subtests
) -> None:
    """Forty shapes of up to four dimensions of 1 to 11 elements, each with drawn placements."""
    rank_mesh = ranks(MESHES[mesh](topology.total))
    draw = random.Random(topology.total)  # noqa: S311
    requests = [_drawn(draw, rank_mesh.ndim) for _ in range(40)]
    reference = oracle.distribute_all(requests, rank_mesh)
    start_runtime(spmd=True)
    device_mesh = DeviceMesh("xla", rank_mesh)
    for (tensor, placements), held in zip(requests, reference, strict=True):
        layout = f"{placements_id(placements)} of {list(tensor.shape)}"
        with subtests.test(layout=layout):
            assert_held(distribute_tensor(tensor, device_mesh, placements), held, layout)


def _drawn(draw: random.Random, mesh_dimensions: int) -> tuple[torch.Tensor, tuple[Placement, ...]]:
    shape = [draw.randint(1, 11) for _ in range(draw.randint(1, 4))]
    dims = draw.sample(range(-len(shape), 0), k=min(len(shape), mesh_dimensions))
    choices = [Shard(dim) for dim in dims] + [R] * mesh_dimensions
    return counting(shape), tuple(draw.sample(choices, k=mesh_dimensions))


@pytest.mark.topologies(4, 8)
@pytest.mark.parametrize("placements", [(S0, S1), (R, S0)], ids=case_id)
def test_transposed_mesh(
    topology: Topology, start_runtime: StartRuntime, placements: Sequence[Placement]
) -> None:
    """Neighbours on the mesh are not neighbours by number."""
    check(counting((8, 8)), ranks((2, topology.total // 2)).T, placements, start_runtime)


@pytest.mark.topologies(2, 4, 8)
@pytest.mark.parametrize("placement", [S0, S1], ids=placement_id)
def test_reversed_mesh(
    topology: Topology, start_runtime: StartRuntime, placement: Placement
) -> None:
    """The shard belongs to the mesh coordinate, not to the device of that number."""
    mesh = ranks((topology.total,)).flip(0)
    check(counting((8, 8)), mesh, (placement,), start_runtime, source_rank=None)


@pytest.mark.topologies(4)
@pytest.mark.parametrize(
    "dtype",
    [
        torch.float16,
        torch.bfloat16,
        torch.float64,
        torch.int8,
        torch.uint8,
        torch.int32,
        torch.int64,
        torch.bool,
        torch.complex64,
    ],
    ids=lambda dtype: str(dtype).removeprefix("torch."),
)
def test_dtype(start_runtime: StartRuntime, dtype: torch.dtype) -> None:
    check(counting((6, 4), dtype), ranks((4,)), (S0,), start_runtime)


@pytest.mark.topologies(4)
def test_strided_input(start_runtime: StartRuntime) -> None:
    check(counting((6, 8)).T[::2], ranks((4,)), (S0,), start_runtime)


@pytest.mark.topologies(1, 4)
@pytest.mark.parametrize("shape", [(), (8,), (3, 5)], ids=case_id)
def test_replicates_without_placements(
    topology: Topology, start_runtime: StartRuntime, shape: tuple[int, ...]
) -> None:
    check(counting(shape), ranks((topology.total,)), None, start_runtime)


@pytest.mark.topologies(4)
def test_mesh_from_the_context(start_runtime: StartRuntime) -> None:
    held = oracle.distribute(counting((8, 8)), ranks((4,)), (S1,))
    start_runtime(spmd=True)
    with DeviceMesh("xla", ranks((4,))):
        placed = distribute_tensor(counting((8, 8)), placements=(S1,))
    assert_held(placed, held, "S1 of [8, 8] on the mesh of the context")
