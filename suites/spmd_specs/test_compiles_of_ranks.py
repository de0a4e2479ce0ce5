"""What a spec on a mesh over slices makes the ranks of a job exchange, as libtpu compiles it.

As in ``test_compiles.py``, in TorchTPU's words: a spec is a DTensor's placements on a mesh, and
FSDPv2 is ``fully_shard``. The oracle is arithmetic: which axis a sum goes over says which bytes
must cross (pytorch/xla#5478, #7102, #8522).
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from harness.lanes.aot.case_compiler import CaseCompiler
from harness.model.topology import Target, Topology
from harness.oracles.torch_dtensor import Placement, Replicate, Shard, distribute_tensor
from suites.shared.compiling import Step, as_one, compile_steps

pytestmark = [
    pytest.mark.lanes("tpu-aot"),
    pytest.mark.frameworks("torch_tpu"),
    pytest.mark.upstream("pytorch/xla#5478", "pytorch/xla#7102"),
    pytest.mark.deadline(120),
]
TWO_SLICES = ("2xv6e:2x2", "2xv5e:2x2")
# Activations [rows, width] by weights [width, width]: large against the sums of a gradient's rows.
ROWS, WIDTH = 1024, 256


def mesh_over(topology: Topology, *, transposed: bool = False) -> DeviceMesh:
    """Return a mesh with one axis over the slices and the other over each slice's chips."""
    slices = max(topology.slices, 2)  # of one slice, its halves
    devices = torch.arange(topology.total).reshape(slices, -1)
    return DeviceMesh(
        "tpu", devices.T if transposed else devices, mesh_dim_names=("outer", "inner")
    )


def placed(
    shape: tuple[int, ...], mesh: DeviceMesh, device: torch.device, *placements: Placement
) -> torch.Tensor:
    return distribute_tensor(torch.ones(shape).to(device), mesh, placements)


def two_layers(
    mesh: DeviceMesh, device: torch.device
) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Megatron's pair: rows over the first axis, weights over the second. Weights and inputs."""
    whole = Replicate()
    x = placed((ROWS, WIDTH), mesh, device, Shard(0), whole)
    first = placed((WIDTH, WIDTH), mesh, device, whole, Shard(1)).requires_grad_()
    second = placed((WIDTH, WIDTH), mesh, device, whole, Shard(0)).requires_grad_()
    return (first, second), x


def steps_of(
    topology: Topology, device: torch.device, *, transposed: bool = False
) -> Mapping[str, Step]:
    """Return the pair's forward pass, summed over the second axis, and its gradients."""
    mesh = mesh_over(topology, transposed=transposed)
    (first, second), x = two_layers(mesh, device)
    results: list[torch.Tensor] = []

    def forward() -> None:
        result = torch.relu(x @ first) @ second
        results.append(result.redistribute(mesh, (Shard(0), Replicate())))

    def gradients() -> None:
        results[0].square().mean().backward()
        for weight in (first, second):
            weight.grad = weight.grad.redistribute(mesh, weight.placements)

    return {"forward": forward, "gradients": gradients}


@pytest.mark.topologies(*TWO_SLICES, "v6e:2x4")
def test_tensor_parallel(xla_target: Target, xla_compiler: CaseCompiler) -> None:
    """In each slice: the sum of activations is its chips' alone, and gradients cross once."""
    topology = xla_target.topology
    steps = compile_steps(xla_compiler, xla_target, lambda device: steps_of(topology, device))
    forward, gradients = as_one(steps["forward"]), as_one(steps["gradients"])
    assert forward.bytes_across == 0, forward.transfers
    assert forward.collectives, "the sum over the chips is gone"
    shards = 2 * 4 * WIDTH * WIDTH // topology.devices
    if topology.slices == 1:
        assert gradients.bytes_across == 0
    else:
        assert shards <= gradients.bytes_across <= 1.05 * shards, gradients.transfers


@pytest.mark.topologies(*TWO_SLICES)
def test_sum_over_slices_crosses(xla_target: Target, xla_compiler: CaseCompiler) -> None:
    """The same on a transposed mesh: now each device sends its activations to the other slice."""
    topology = xla_target.topology
    steps = compile_steps(
        xla_compiler, xla_target, lambda device: steps_of(topology, device, transposed=True)
    )
    sent = as_one(steps["forward"]).bytes_across
    assert sent >= 4 * ROWS // topology.devices * WIDTH // topology.slices


@pytest.mark.topologies(*TWO_SLICES, "v6e:2x4")
@pytest.mark.upstream("pytorch/xla#8522")
@pytest.mark.parametrize("across", ["data", "fsdp"])
def test_fully_shard(xla_target: Target, xla_compiler: CaseCompiler, across: str) -> None:
    """A training step of FSDP2, over slices as data or as shards.

    Slices that hold replicas exchange gradients only; shards over slices must be gathered, too.
    """
    topology = xla_target.topology

    def prepare(device: torch.device) -> Mapping[str, Step]:
        torch.manual_seed(0)
        # Without biases: the rows that are gathered are whole tiles, which stay gathered.
        model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2)))
        model.to(device)
        mesh = mesh_over(topology)
        if across == "fsdp":
            mesh = DeviceMesh("tpu", torch.arange(topology.total))
        for part in (*model, model):
            fully_shard(part, mesh=mesh)
        x = torch.ones(16, WIDTH).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step() -> None:
            model(x).square().mean().backward()
            optimizer.step()

        return {"step": step}

    program = as_one(compile_steps(xla_compiler, xla_target, prepare)["step"])
    assert "all-gather" in program.kinds
    if topology.slices == 1:
        assert program.bytes_across == 0
    elif across == "data":
        assert set(program.kinds_across) == {"ALL_REDUCE"}, program.transfers
    else:
        assert "ALL_GATHER" in program.kinds_across, program.transfers
