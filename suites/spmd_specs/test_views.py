"""Views can be marked, whatever their base is."""

from collections.abc import Callable

import pytest
import torch
import torch_xla.distributed.spmd as xs

from harness.model.topology import Topology
from harness.oracles.sharding import Layout, Spec, check_placement
from harness.session.fixtures import StartRuntime
from suites.shared.execution import settle
from suites.spmd_specs.meshes import marked, numbered, shuffled, xla_mesh

pytestmark = [pytest.mark.lanes("cpu", "virtual-*"), pytest.mark.upstream("pytorch/xla#8662")]


def _view_cases() -> dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Spec]]:
    return {
        "reshape": (lambda t: t.view(4, 16), ("x", "y")),
        "flatten": (lambda t: t.view(-1), (("x", "y"),)),
        "same": (lambda t: t.view(8, 8), ("y", "x")),
        "transpose": (lambda t: t.T, ("x", "y")),
        "permute": (lambda t: t.view(2, 4, 8).permute(2, 0, 1), ("y", "x", None)),
        "slice": (lambda t: t[:4], ("x", "y")),
        "narrow": (lambda t: t.narrow(1, 2, 4), ("x", "y")),
        "select": (lambda t: t[3], ("x",)),
        "diagonal": (lambda t: t.diagonal(), ("x",)),
        "unsqueeze": (lambda t: t.unsqueeze(0), (None, "x", "y")),
        "expand": (lambda t: t[:1].expand(8, 8), ("x", "y")),
        "scalar": (lambda t: t[3, 4], ()),
    }


@pytest.mark.topologies(4)
@pytest.mark.parametrize("view", _view_cases())
def test_view(start_runtime: StartRuntime, view: str, subtests: pytest.Subtests) -> None:
    """A view is marked; its base is not, is marked otherwise, or is still a computation."""
    start_runtime(spmd=True)
    take, spec = _view_cases()[view]
    layout = Layout((2, 2), shuffled(4), ("x", "y"))
    value = numbered((8, 8))
    other = ("y", None)
    computed = value.to("xla") + 0
    xs.mark_sharding(computed, xla_mesh(layout), other)
    bases = {
        "unmarked": value.to("xla"),
        "marked otherwise": marked(value, layout, other),
        "computed": computed,
    }
    for name, base in bases.items():
        with subtests.test(base=name):
            part = take(base)
            xs.mark_sharding(part, xla_mesh(layout), spec)
            settle()
            check_placement(part, take(value).numpy(), layout, spec)
            assert torch.equal(base.cpu(), value), "the base changed"


@pytest.mark.topologies(1, 4)
def test_view_of_sharded_gather(topology: Topology, start_runtime: StartRuntime) -> None:
    """The report's program: gather rows of a sharded table, view, mark, view again."""
    start_runtime(spmd=True)
    shape = (1, 1, topology.devices)
    layout = Layout(shape, tuple(range(topology.devices)), ("data", "other", "model"))
    mesh = xla_mesh(layout)
    table, rows = numbered((32, 16)), torch.arange(16).flip(0).reshape(1, 16)
    weight, indices = table.to("xla"), rows.to("xla")
    xs.mark_sharding(weight, mesh, ("model", None))
    picked = torch.index_select(weight, 0, indices.view(-1)).view(1, 16, 16)
    xs.mark_sharding(picked, mesh, ("data", "model", None))
    again = picked.view(1, 16, 16)
    settle()
    expected = table[rows.view(-1)].reshape(1, 16, 16)
    assert torch.equal(again.cpu(), expected)
    check_placement(picked, expected.numpy(), layout, ("data", "model", None))
