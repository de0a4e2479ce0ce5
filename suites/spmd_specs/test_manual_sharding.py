"""Manual sharding: collectives by hand, in replica groups of device ids."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch_xla
import torch_xla.distributed.spmd as xs

from harness.model.topology import Topology
from harness.oracles.sharding import Layout, Shape, Spec, as_numpy, expected_tiles
from harness.session.fixtures import StartRuntime
from suites.spmd_specs.meshes import grid, numbered, shuffled, xla_mesh

pytestmark = [pytest.mark.lanes("cpu", "virtual-*"), pytest.mark.upstream("pytorch/xla#5279")]


def _groups(devices: int) -> dict[str, list[list[int]]]:
    ids = list(range(devices))
    return {
        "all": [ids],
        "reversed": [ids[::-1]],
        "halves": [ids[: devices // 2], ids[devices // 2 :]],
        "strided": [ids[::2], ids[1::2]],
        "alone": [[i] for i in ids],
    }


GROUPS = tuple(_groups(8))
REDUCERS: dict[str, Callable[..., np.ndarray]] = {
    "sum": np.sum,
    "max": np.max,
}


def blocks(values: torch.Tensor, layout: Layout, spec: Spec) -> dict[int, np.ndarray]:
    """Device id -> its part of `values`, by JAX."""
    tiles = expected_tiles(layout, spec, tuple(values.shape))
    return {device: values.numpy()[tile.slices] for device, tile in tiles.items()}


def assembled(parts: dict[int, np.ndarray], layout: Layout) -> np.ndarray:
    """Assemble the array whose dimension 0 the one mesh axis of `layout` shards."""
    return np.concatenate([parts[device] for device in layout.device_ids])


@pytest.mark.topologies(8)
@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("reducer", REDUCERS)
def test_manual_all_reduce(
    topology: Topology, start_runtime: StartRuntime, reducer: str, groups: str
) -> None:
    """Every device reduces its block with those of its replica group; ids are device ids."""
    start_runtime(spmd=True)
    layout = Layout((topology.devices,), shuffled(topology.devices), ("x",))
    # Exact in float32, as their sums are, and not in bfloat16.
    values, spec = numbered((16, 3)) * (513 / 512), ("x", None)
    own, members = blocks(values, layout, spec), _groups(topology.devices)[groups]
    mesh = xla_mesh(layout)
    local = xs.enable_manual_sharding(values.to("xla"), spec, mesh=mesh).global_tensor
    reduced = torch_xla._XLAC._xla_spmd_all_reduce(reducer, local, 0.5, members)
    result = xs.disable_manual_sharding(reduced, spec, values.shape, mesh=mesh)
    parts = {d: REDUCERS[reducer]([own[m] for m in g], axis=0) * 0.5 for g in members for d in g}
    np.testing.assert_allclose(as_numpy(result), assembled(parts, layout))


@pytest.mark.topologies(8)
@pytest.mark.parametrize("groups", GROUPS)
def test_manual_reduce_scatter(
    topology: Topology, start_runtime: StartRuntime, groups: str
) -> None:
    """The sum over a group is cut along dimension 1, in the group's own order."""
    start_runtime(spmd=True)
    layout = Layout((topology.devices,), shuffled(topology.devices), ("x",))
    values, spec = numbered((topology.devices, 16)), ("x", None)
    own, members = blocks(values, layout, spec), _groups(topology.devices)[groups]
    mesh, size = xla_mesh(layout), len(members[0])
    local = xs.enable_manual_sharding(values.to("xla"), spec, mesh=mesh).global_tensor
    part = torch_xla._XLAC._xla_spmd_reduce_scatter("sum", local, 1.0, 1, size, members)
    shape = (topology.devices, 16 // size)
    result = xs.disable_manual_sharding(part, spec, shape, mesh=mesh)
    parts: dict[int, np.ndarray] = {}
    for group in members:
        pieces = np.split(sum(own[m] for m in group), size, axis=1)
        parts.update(zip(group, pieces, strict=True))
    np.testing.assert_allclose(as_numpy(result), assembled(parts, layout))


@pytest.mark.topologies(1, 4)
@pytest.mark.parametrize(
    ("shape", "spec"),
    [
        ((8, 8), ("x", "y")),
        ((8, 8), ("y", None)),
        ((8, 8), (None, None)),
        ((8, 8), (("y", "x"), None)),
        ((5,), ("x",)),
        ((), ()),
    ],
    ids=["both", "second-axis", "replicated", "tuple", "uneven", "scalar"],
)
def test_manual_round_trip(
    topology: Topology, start_runtime: StartRuntime, shape: Shape, spec: Spec
) -> None:
    """Inside, a tensor has the shape of a shard; outside, the full shape and its sharding."""
    start_runtime(spmd=True)
    layout = grid(topology)
    mesh, values = xla_mesh(layout), numbered(shape)
    local = xs.enable_manual_sharding(values.to("xla"), spec, mesh=mesh).global_tensor
    buffers = {tile.buffer for tile in expected_tiles(layout, spec, shape).values()}
    assert {tuple(local.shape)} == buffers
    result = xs.disable_manual_sharding(local * 2, spec, values.shape, mesh=mesh)
    np.testing.assert_array_equal(as_numpy(result), values.numpy() * 2)


@pytest.mark.topologies(4)
def test_manual_scalar_all_reduce(topology: Topology, start_runtime: StartRuntime) -> None:
    """A 0-d tensor is the same on all devices, so its sum is their number times it."""
    start_runtime(spmd=True)
    layout = grid(topology)
    local = xs.enable_manual_sharding(torch.tensor(3.0).to("xla"), (), mesh=xla_mesh(layout))
    ids = list(range(topology.devices))
    total = torch_xla._XLAC._xla_spmd_all_reduce("sum", local.global_tensor, 1.0, [ids])
    result = xs.disable_manual_sharding(total, (), (), mesh=xla_mesh(layout))
    assert as_numpy(result) == 3.0 * topology.devices
