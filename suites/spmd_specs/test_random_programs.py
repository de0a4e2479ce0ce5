"""Programs of torch_xla that ``xla-harness fuzz`` found; plain PyTorch says what is right."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch_xla.distributed.spmd as xs

from harness.model.topology import Topology
from harness.session.fixtures import StartRuntime
from suites.spmd_specs.meshes import layouts, xla_mesh

pytestmark = [pytest.mark.lanes("cpu", "virtual-tpu"), pytest.mark.deadline(60)]


@pytest.mark.upstream("pytorch/xla#8720")
@pytest.mark.topologies("1", "4")
@pytest.mark.parametrize("is_marked", [False, True], ids=["unmarked", "marked"])
@pytest.mark.parametrize(("reducer", "sign"), [("amax", -1), ("amin", 1)], ids=["amax", "amin"])
def test_extremes_scattered_into_rows(
    topology: Topology, start_runtime: StartRuntime, reducer: str, sign: int, is_marked: bool
) -> None:
    """Each row gets the greatest of its own and others' numbers, which are all below zero."""
    start_runtime(spmd=True)
    host = sign * torch.arange(1.0, 13.0).reshape(4, 3)
    places = torch.tensor([[0], [0], [2], [3]]).expand(4, 3)
    x = host.to("xla")
    if is_marked:
        xs.mark_sharding(x, xla_mesh(layouts(topology.devices, 1)[0]), ("x", None))
    result = x.scatter_reduce(0, places.to("xla"), x, reducer)
    torch.testing.assert_close(result.cpu(), host.scatter_reduce(0, places, host, reducer))


Step = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


@pytest.mark.upstream("pytorch/xla#8783")
@pytest.mark.topologies("4")
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32], ids=["floats", "integers"])
@pytest.mark.parametrize(
    "step",
    [
        lambda before, row: (before + row, before * 2),
        lambda before, row: (before + row, row * 2),
        lambda before, row: (row * 2, before + row),
    ],
    ids=["of-states", "of-rows", "next-state-of-a-row"],
)
def test_scan_without_gradients(
    start_runtime: StartRuntime, step: Step, dtype: torch.dtype
) -> None:
    """Nothing needs a gradient, and some results come of the rows alone."""
    scan = pytest.importorskip("torch_xla.experimental.scan").scan
    start_runtime(spmd=True)
    rows = torch.arange(8).reshape(4, 2).to(dtype)
    state, outputs = torch.zeros_like(rows[0]), []
    for row in rows:
        state, output = step(state, row)
        outputs.append(output)
    last, stacked = scan(step, torch.zeros_like(rows[0]).to("xla"), rows.to("xla"))
    torch.testing.assert_close(last.cpu(), state)
    torch.testing.assert_close(stacked.cpu(), torch.stack(outputs))


@pytest.mark.upstream("openxla/xla#4340")
@pytest.mark.topologies("4")
def test_greatest_so_far_into_parts(topology: Topology, start_runtime: StartRuntime) -> None:
    """torch_xla computes the greatest number so far together with its place."""
    start_runtime(spmd=True)
    host = torch.tensor([3.0, 1.0, 4.0, 1.0])
    result = torch.cummax(host.to("xla"), 0).values * 1
    xs.mark_sharding(result, xla_mesh(layouts(topology.devices, 1)[0]), ("x",))
    torch.testing.assert_close(result.cpu(), torch.cummax(host, 0).values)


@pytest.mark.upstream("pytorch/xla#8610")
@pytest.mark.topologies("1")
@pytest.mark.parametrize("size", [16, 17])
def test_greatest_so_far_of_seventeen(start_runtime: StartRuntime, size: int) -> None:
    """XLA computes windows of more than sixteen elements in two steps."""
    start_runtime(spmd=True)
    host = torch.arange(float(size)).flip(0)
    torch.testing.assert_close(torch.cummax(host.to("xla"), 0).values.cpu(), host.cummax(0).values)


@pytest.mark.upstream("openxla/xla#4340")
@pytest.mark.topologies("4")
def test_greatest_of_rows_scattered_into_parts(
    topology: Topology, start_runtime: StartRuntime
) -> None:
    """Fewer rows than devices; torch's places have 64 bits."""
    start_runtime(spmd=True)
    host, places = torch.arange(3.0), torch.tensor([0, 0, 2])
    divided = host.to("xla") * 2
    xs.mark_sharding(divided, xla_mesh(layouts(topology.devices, 1)[0]), ("x",))
    result = divided.scatter_reduce(0, places.to("xla"), divided, "amax")
    expected = (host * 2).scatter_reduce(0, places, host * 2, "amax")
    torch.testing.assert_close(result.cpu(), expected)
