"""Gradients through sharded leaves and activations are plain PyTorch's."""

import pytest
import torch
import torch_xla.distributed.spmd as xs

from harness.model.mismatch import NumbersError
from harness.model.topology import Topology
from harness.oracles.sharding import Shape, Spec, as_numpy, check_placement
from harness.session.fixtures import StartRuntime
from suites.shared.execution import settle
from suites.spmd_specs.meshes import grid, marked, numbered, xla_mesh

pytestmark = [pytest.mark.lanes("cpu", "virtual-*"), pytest.mark.upstream("pytorch/xla#5264")]


@pytest.mark.topologies(4, 8)
@pytest.mark.parametrize(
    "spec", [("x", "y"), ("y", None), (None, None)], ids=["both-axes", "one-axis", "replicated"]
)
def test_gradients(topology: Topology, start_runtime: StartRuntime, spec: Spec) -> None:
    """Leaves, a 0-d one among them, and an activation, all sharded: plain PyTorch's numbers."""
    start_runtime(spmd=True)
    layout = grid(topology)
    mesh = xla_mesh(layout)
    torch.manual_seed(0)
    hosts = torch.randn(8, 8), torch.randn(8, 8), torch.tensor(0.7)
    ours = [marked(t, layout, s) for t, s in zip(hosts, ((None, "x"), spec, ()), strict=True)]

    def loss(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor, *, mark: bool) -> torch.Tensor:
        hidden = torch.tanh(x @ w)
        if mark:
            xs.mark_sharding(hidden, mesh, tuple(reversed(spec)))
        return (hidden * s).square().sum()

    for leaf in (*hosts, *ours):
        leaf.requires_grad_()
    loss(*hosts, mark=False).backward()
    loss(*ours, mark=True).backward()
    settle()
    wrong = [
        name
        for name, host, leaf in zip("xws", hosts, ours, strict=True)
        if not torch.allclose(leaf.grad.cpu(), host.grad, rtol=1e-4, atol=1e-4)
    ]
    if wrong:
        raise NumbersError(f"wrong gradients of {wrong} over devices {layout.device_ids}")


@pytest.mark.topologies(1, 8)
@pytest.mark.parametrize("shape", [(8, 8), (8, 4, 8)], ids=["2d", "3d"])
def test_gradient_is_marked(topology: Topology, start_runtime: StartRuntime, shape: Shape) -> None:
    """mark_sharding_with_gradients shards an activation and its gradient, and is not in place."""
    start_runtime(spmd=True)
    layout, spec = grid(topology), ("x", *[None] * (len(shape) - 2), "y")
    host = numbered(shape).div(100).requires_grad_()
    leaf = numbered(shape).div(100).to("xla").requires_grad_()
    hidden = leaf * 2
    hidden.retain_grad()
    out = xs.mark_sharding_with_gradients(hidden, xla_mesh(layout), spec)
    out.sin().sum().backward()
    settle()
    (host * 2).sin().sum().backward()
    check_placement(out, as_numpy(out), layout, spec)
    check_placement(hidden.grad, as_numpy(hidden.grad), layout, spec)
    torch.testing.assert_close(leaf.grad.cpu(), host.grad)


@pytest.mark.topologies(4)
def test_gradient_of_elementwise(topology: Topology, start_runtime: StartRuntime) -> None:
    """Where nothing is communicated, a leaf's gradient has the leaf's shards."""
    start_runtime(spmd=True)
    layout, spec = grid(topology), ("y", "x")
    leaf = marked(numbered((8, 8)), layout, spec).requires_grad_()
    (leaf * leaf).sum().backward()
    settle()
    check_placement(leaf.grad, numbered((8, 8)).numpy() * 2, layout, spec)
