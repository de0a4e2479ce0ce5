"""A sharding after it was made: kept by updates, changed, cleared."""

from collections.abc import Callable

import pytest
import torch
import torch_xla.distributed.spmd as xs

from harness.model.topology import Topology
from harness.oracles.sharding import Shape, Spec, check_placement
from harness.session.fixtures import StartRuntime
from suites.shared.execution import settle
from suites.spmd_specs.meshes import grid, marked, numbered, sharding_of, xla_mesh

pytestmark = [pytest.mark.lanes("cpu", "virtual-*"), pytest.mark.upstream("pytorch/xla#5264")]


@pytest.mark.topologies(1, 4)
@pytest.mark.parametrize(
    ("shape", "spec"),
    [((8, 8), ("x", "y")), ((5, 3), ("y", "x")), ((8,), (None,)), ((), ())],
    ids=["8x8", "5x3-uneven", "replicated", "scalar"],
)
def test_clear(topology: Topology, start_runtime: StartRuntime, shape: Shape, spec: Spec) -> None:
    """No sharding is left, the values are whole, and the tensor may be marked anew."""
    start_runtime(spmd=True)
    layout = grid(topology)
    tensor = marked(numbered(shape), layout, spec)
    assert xs.clear_sharding(tensor) is tensor
    assert sharding_of(tensor) == ""
    assert torch.equal(tensor.cpu(), numbered(shape))
    other = tuple(reversed(spec))
    xs.mark_sharding(tensor, xla_mesh(layout), other)
    check_placement(tensor, numbered(shape).numpy(), layout, other)


@pytest.mark.topologies(4)
def test_clear_sharded_tensor(topology: Topology, start_runtime: StartRuntime) -> None:
    """clear_sharding takes mark_sharding's result too, and gives the plain tensor back."""
    start_runtime(spmd=True)
    tensor = numbered((8, 8)).to("xla")
    wrapped = xs.mark_sharding(tensor, xla_mesh(grid(topology)), ("x", "y"))
    plain = xs.clear_sharding(wrapped)
    assert type(plain) is torch.Tensor
    assert sharding_of(plain) == sharding_of(tensor) == ""


@pytest.mark.topologies(4)
def test_clear_of_unsharded(start_runtime: StartRuntime) -> None:
    start_runtime(spmd=True)
    tensor = numbered((4,)).to("xla")
    assert torch.equal(xs.clear_sharding(tensor).cpu(), numbered((4,)))


@pytest.mark.topologies(4)
def test_clear_keeps_earlier_uses(topology: Topology, start_runtime: StartRuntime) -> None:
    """What was computed from the sharded tensor before is still computed right."""
    start_runtime(spmd=True)
    layout = grid(topology)
    tensor = marked(numbered((8, 8)), layout, ("x", "y"))
    double = tensor * 2
    xs.clear_sharding(tensor)
    settle()
    check_placement(double, numbered((8, 8)).numpy() * 2, layout, ("x", "y"))


@pytest.mark.topologies(1, 4)
@pytest.mark.parametrize("moment", ["before-sync", "after-sync"])
def test_clear_intermediate(topology: Topology, start_runtime: StartRuntime, moment: str) -> None:
    start_runtime(spmd=True)
    tensor = numbered((8, 8)).to("xla") + 1
    xs.mark_sharding(tensor, xla_mesh(grid(topology)), ("x", "y"))
    if moment == "after-sync":
        settle()
    xs.clear_sharding(tensor)
    settle()
    assert torch.equal(tensor.cpu(), numbered((8, 8)) + 1)


@pytest.mark.topologies(4)
def test_mark_twice(topology: Topology, start_runtime: StartRuntime) -> None:
    """The same again is fine, and a replicated tensor may be sharded; the rest is refused."""
    start_runtime(spmd=True)
    layout = grid(topology)
    tensor = marked(numbered((8, 8)), layout, ("x", "y"))
    xs.mark_sharding(tensor, xla_mesh(layout), ("x", "y"))
    with pytest.raises(RuntimeError, match="Existing annotation must be cleared first"):
        xs.mark_sharding(tensor, xla_mesh(layout), ("y", "x"))
    check_placement(tensor, numbered((8, 8)).numpy(), layout, ("x", "y"))
    whole = marked(numbered((8, 8)), layout, (None, None))
    xs.mark_sharding(whole, xla_mesh(layout), ("y", None))
    check_placement(whole, numbered((8, 8)).numpy(), layout, ("y", None))


def _updates() -> dict[str, Callable[[torch.Tensor], object]]:
    return {
        "add": lambda t: t.add_(1),
        "zero": lambda t: t.zero_(),
        "fill": lambda t: t.fill_(3),
        "copy-from-host": lambda t: t.copy_(torch.ones(8, 8)),
        "set-row": lambda t: t[2].fill_(5),
        "clone": lambda t: t.clone(),
        "data": lambda t: setattr(t, "data", t.data * 2),
    }


@pytest.mark.topologies(4)
@pytest.mark.parametrize("update", _updates())
def test_update_keeps_sharding(
    topology: Topology, start_runtime: StartRuntime, update: str
) -> None:
    start_runtime(spmd=True)
    layout = grid(topology)
    tensor, expected = marked(numbered((8, 8)), layout, ("y", "x")), numbered((8, 8))
    _updates()[update](tensor)
    _updates()[update](expected)
    settle()
    check_placement(tensor, expected.numpy(), layout, ("y", "x"))


@pytest.mark.topologies(4)
@pytest.mark.parametrize("source", ["sharded-otherwise", "unsharded"])
def test_copy_keeps_sharding(topology: Topology, start_runtime: StartRuntime, source: str) -> None:
    """copy_ brings values; where they live is the target's own."""
    start_runtime(spmd=True)
    layout = grid(topology)
    target, values = marked(numbered((8, 8)), layout, ("x", None)), numbered((8, 8)) * 2
    spec = ("y", None)
    target.copy_(marked(values, layout, spec) if source != "unsharded" else values.to("xla"))
    settle()
    check_placement(target, values.numpy(), layout, ("x", None))
