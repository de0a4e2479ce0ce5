"""mark_sharding puts on each device the part that JAX's NamedSharding puts there."""

import itertools
from dataclasses import replace

import pytest
import torch
import torch_xla.distributed.spmd as xs
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.model.topology import Topology
from harness.oracles.sharding import Layout, Shape, Spec, as_numpy, check_placement
from harness.session.fixtures import StartRuntime
from suites.spmd_specs.meshes import (
    NAMES,
    check_marked,
    every_spec,
    layouts,
    marked,
    numbered,
    shuffled,
    xla_mesh,
)
from suites.spmd_specs.shapes import all_mesh_shapes

pytestmark = [pytest.mark.lanes("cpu", "virtual-*"), pytest.mark.upstream("pytorch/xla#5264")]


DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32]
DTYPES += [torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64]


@pytest.mark.topologies(1, 2, 4, 8)
@pytest.mark.parametrize("tensor_rank", [1, 2, 3], ids="tensor{}d".format)
@pytest.mark.parametrize("mesh_rank", [1, 2, 3], ids="mesh{}d".format)
def test_every_spec(
    topology: Topology,
    start_runtime: StartRuntime,
    mesh_rank: int,
    tensor_rank: int,
    subtests: pytest.Subtests,
) -> None:
    """All of them, with the axes by name and, for the first mesh, by number too."""
    start_runtime(spmd=True)
    value = numbered((8, 16, 8)[:tensor_rank])
    named = layouts(topology.devices, mesh_rank)
    for layout in (*named, replace(named[0], names=None)):
        for spec in every_spec(layout, tensor_rank):
            with subtests.test(mesh=layout.shape, spec=spec):
                check_marked(value, layout, spec)


@pytest.mark.long
@pytest.mark.topologies(2, 8)
@pytest.mark.parametrize("shapes", [[(1,), (3,), (9,)], [(5, 3)]], ids=["1d", "5x3"])
@pytest.mark.parametrize("mesh_rank", [1, 2, 3], ids="mesh{}d".format)
def test_uneven_sizes(
    topology: Topology,
    start_runtime: StartRuntime,
    mesh_rank: int,
    shapes: list[Shape],
    subtests: pytest.Subtests,
) -> None:
    """Sizes that the shards do not divide, and sizes smaller than their number."""
    start_runtime(spmd=True)
    layout = layouts(topology.devices, mesh_rank)[0]
    for value in map(numbered, shapes):
        for spec in every_spec(layout, value.dim()):
            with subtests.test(shape=tuple(value.shape), spec=spec):
                tensor = marked(value, layout, spec)
                check_placement(tensor, value.numpy(), layout, spec)
                assert torch.equal(tensor.cpu(), value), f"gathered values differ for {spec}"


@st.composite
def _examples(draw: st.DrawFn, devices: int) -> tuple[torch.Tensor, Layout, Spec]:
    shape = draw(st.sampled_from(all_mesh_shapes(devices, draw(st.integers(1, 3)))))
    ids = tuple(draw(st.permutations(range(devices))))
    names = draw(st.sampled_from([None, NAMES[: len(shape)]]))
    layout = Layout(shape, ids, names)
    size = tuple(draw(st.lists(st.integers(1, 10), max_size=4)))
    used = draw(st.lists(st.sampled_from(range(len(shape))), unique=True))
    homes = [draw(st.integers(0, len(size) - 1)) for _ in used] if size else []
    spec = []
    for dim in range(len(size)):
        axes = tuple(
            names[a] if names and draw(st.booleans()) else a
            for a, h in zip(used, homes, strict=True)
            if h == dim
        )
        spec.append(axes or None)
    return numbered(size), layout, tuple(spec)


@pytest.mark.topologies(1, 2, 4, 8)
def test_random_specs(topology: Topology, start_runtime: StartRuntime) -> None:
    start_runtime(spmd=True)

    @settings(derandomize=True, deadline=None, database=None, max_examples=100)
    @given(example=_examples(topology.devices))
    def check(example: tuple[torch.Tensor, Layout, Spec]) -> None:
        value, layout, spec = example
        check_marked(value, layout, spec)

    check()


@pytest.mark.topologies(4)
@pytest.mark.parametrize(
    ("shape", "spec"),
    [((0,), ("x",)), ((0, 4), ("x", "y")), ((4, 0), ("x", None)), ((3, 0), ("x", None))],
    ids=["0", "0x4", "4x0", "3x0-uneven"],
)
def test_empty(start_runtime: StartRuntime, shape: Shape, spec: Spec) -> None:
    start_runtime(spmd=True)
    check_marked(numbered(shape), Layout((2, 2), shuffled(4), ("x", "y")), spec)


@pytest.mark.topologies(4)
def test_every_device_order(
    topology: Topology, start_runtime: StartRuntime, subtests: pytest.Subtests
) -> None:
    start_runtime(spmd=True)
    value = numbered((4, 4))
    for ids in itertools.permutations(range(topology.devices)):
        layout = Layout((2, 2), ids, ("x", "y"))
        for spec in (("x", "y"), ("y", None), (None, ("y", "x"))):
            with subtests.test(devices=ids, spec=spec):
                check_marked(value, layout, spec)


@pytest.mark.topologies(1, 2, 4, 8)
@pytest.mark.upstream("pytorch/xla#8522")
def test_scalar(topology: Topology, start_runtime: StartRuntime, subtests: pytest.Subtests) -> None:
    start_runtime(spmd=True)
    for mesh_rank in (1, 2, 3):
        for layout in layouts(topology.devices, mesh_rank):
            with subtests.test(mesh=layout.shape):
                check_marked(torch.tensor(3.5), layout, ())


@pytest.mark.topologies(4)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))
def test_dtypes(start_runtime: StartRuntime, dtype: torch.dtype) -> None:
    start_runtime(spmd=True)
    layout = Layout((2, 2), shuffled(4), ("x", "y"))
    value = numbered((5, 4), dtype)
    tensor = value.to("xla")
    xs.mark_sharding(tensor, xla_mesh(layout), ("y", "x"))
    check_placement(tensor, as_numpy(value), layout, ("y", "x"))
    assert torch.equal(tensor.cpu(), value)


@pytest.mark.topologies(4)
@pytest.mark.parametrize("spec", [(0, 1), (1, 0)], ids=["columns", "rows"])
def test_order_of_axes_counts(topology: Topology, start_runtime: StartRuntime, spec: Spec) -> None:
    """The report's mesh, (1, n): (0, 1) shards columns, (1, 0) rows."""
    start_runtime(spmd=True)
    layout = Layout((1, topology.devices), tuple(range(topology.devices)))
    check_marked(numbered((64, 32)), layout, spec)


@pytest.mark.topologies(1, 8)
@pytest.mark.parametrize("axis_name", [None, "data"], ids=["unnamed", "named"])
def test_1d_mesh_helper(
    topology: Topology, start_runtime: StartRuntime, axis_name: str | None
) -> None:
    start_runtime(spmd=True)
    layout = Layout((topology.devices,), tuple(range(topology.devices)))
    value = numbered((5,))
    tensor = value.to("xla")
    xs.mark_sharding(tensor, xs.get_1d_mesh(axis_name), (axis_name or 0,))
    check_placement(tensor, value.numpy(), layout, (0,))


@pytest.mark.topologies(8)
def test_mesh_survives_its_string(
    topology: Topology, start_runtime: StartRuntime, subtests: pytest.Subtests
) -> None:
    """MarkShardingFunction hands the mesh over as a string."""
    start_runtime(spmd=True)
    value = numbered((8, 4))
    for rank in (1, 2, 3):
        for layout in layouts(topology.devices, rank):
            with subtests.test(mesh=layout.shape):
                mesh = xs.Mesh.from_str(str(xla_mesh(layout)))
                assert mesh is not None
                tensor = value.to("xla")
                xs.mark_sharding(tensor, mesh, ("x", None))
                check_placement(tensor, value.numpy(), layout, ("x", None))
