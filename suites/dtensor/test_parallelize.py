"""``parallelize_module`` on an "xla" mesh does what it does in DTensor."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.testing._internal.distributed.fake_pg import FakeStore

from harness.model.topology import Topology
from harness.oracles import dtensor as oracle
from harness.oracles.torch_dtensor import distribute_tensor
from harness.session.fixtures import StartRuntime
from suites.dtensor.layouts import FUNCTIONALIZATION, S0, S1, R, quiet_upstream, ranks
from suites.dtensor.models import seeded_batch, seeded_model
from suites.dtensor.shards import assert_functionalization, assert_held, assert_value

pytestmark = [
    pytest.mark.lanes("cpu", "virtual-*"),
    pytest.mark.upstream("pytorch/xla#8534"),
    quiet_upstream,
]


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(10, 12)


def embedding() -> nn.Module:
    torch.manual_seed(0)
    return nn.Embedding(16, 12)


def layer_norm() -> nn.Module:
    return nn.LayerNorm(10)


def tokens() -> torch.Tensor:
    return torch.arange(16).reshape(2, 8)


# A module, its plan and a batch.
Style = tuple[Callable[[], nn.Module], Callable[[], Any], Callable[[], torch.Tensor]]
STYLES: dict[str, Style] = {
    "two-layer": (
        seeded_model,
        lambda: {"in_proj": ColwiseParallel(), "out_proj": RowwiseParallel()},
        seeded_batch,
    ),
    "colwise": (linear, lambda: ColwiseParallel(output_layouts=R), seeded_batch),
    "rowwise": (linear, lambda: RowwiseParallel(input_layouts=R), seeded_batch),
    "colwise-embedding": (embedding, lambda: ColwiseParallel(output_layouts=R), tokens),
    "rowwise-embedding": (embedding, lambda: RowwiseParallel(input_layouts=R), tokens),
}


def parallelized(style: str, mesh: DeviceMesh) -> nn.Module:
    make, plan, _ = STYLES[style]
    return parallelize_module(make().to(mesh.device_type), mesh, plan())


def output(style: str, mesh: DeviceMesh) -> dict[str, torch.Tensor]:
    """Run the parallelized module on a batch that is the same on every rank."""
    *_, batch = STYLES[style]
    return {"output": parallelized(style, mesh)(batch().to(mesh.device_type))}


def assert_output(mesh: torch.Tensor, run: oracle.Program, expected: oracle.Held) -> None:
    assert_value(run(DeviceMesh("xla", mesh))["output"], expected.shards[0], "the output")


@pytest.mark.topologies(1, 4)
@pytest.mark.parametrize("style", STYLES)
def test_places_the_parameters(
    topology: Topology, start_runtime: StartRuntime, style: str, subtests: pytest.Subtests
) -> None:
    mesh = ranks((topology.total,))
    expected = oracle.run_program(
        lambda device_mesh: dict(parallelized(style, device_mesh).named_parameters()), mesh
    )
    start_runtime(spmd=True)
    parameters = dict(parallelized(style, DeviceMesh("xla", mesh)).named_parameters())
    assert set(parameters) == set(expected)
    for name, held in expected.items():
        with subtests.test(parameter=name):
            assert parameters[name].requires_grad, f"{name} is not to be trained"
            assert_held(parameters[name], held, name)


@pytest.mark.topologies(1, 2, 4, 8)
def test_forward(topology: Topology, start_runtime: StartRuntime) -> None:
    """The model of pytorch/xla#8534, parallelized, computes what DTensor computes."""
    mesh = ranks((topology.total,))
    expected = oracle.run_program(lambda m: output("two-layer", m), mesh)["output"]
    start_runtime(spmd=True)
    assert_output(mesh, lambda m: output("two-layer", m), expected)


@pytest.mark.topologies(4)
@pytest.mark.parametrize("style", sorted(STYLES.keys() - {"two-layer"}))
def test_forward_of_a_style(start_runtime: StartRuntime, style: str) -> None:
    expected = oracle.run_program(lambda m: output(style, m), ranks((4,)))["output"]
    start_runtime(spmd=True)
    assert_output(ranks((4,)), lambda m: output(style, m), expected)


@pytest.mark.topologies(4)
def test_sequence_parallel(start_runtime: StartRuntime) -> None:
    """The sequence, dimension 1, is sharded; the parameters are replicated."""

    def program(mesh: DeviceMesh) -> dict[str, torch.Tensor]:
        module = parallelize_module(
            layer_norm().to(mesh.device_type), mesh, SequenceParallel(use_local_output=False)
        )
        batch = distribute_tensor(seeded_batch().unsqueeze(0), mesh, (S1,))
        return {"output": module(batch)}

    held = oracle.run_program(program, ranks((4,)))["output"]
    start_runtime(spmd=True)
    placed = program(DeviceMesh("xla", ranks((4,))))["output"]
    assert_value(placed, torch.cat(held.shards, dim=1), "the output")


@pytest.mark.topologies(4)
def test_prepare_module_input(start_runtime: StartRuntime) -> None:
    def program(mesh: DeviceMesh) -> dict[str, torch.Tensor]:
        style = PrepareModuleInput(input_layouts=(R,), desired_input_layouts=(S0,))
        module = parallelize_module(nn.Identity(), mesh, style)
        return {"output": module(seeded_batch().to(mesh.device_type))}

    expected = oracle.run_program(program, ranks((4,)))["output"]
    start_runtime(spmd=True)
    placed = program(DeviceMesh("xla", ranks((4,))))["output"]
    assert_value(placed, torch.cat(expected.shards), "the output")


def gloo_group(_: int) -> None:
    dist.init_process_group(
        "gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=timedelta(seconds=10)
    )


def fake_group(world_size: int) -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)


@pytest.mark.topologies(1, 4)
@pytest.mark.environment(GLOO_SOCKET_IFNAME="lo")
@pytest.mark.parametrize("init_group", [gloo_group, fake_group], ids=["gloo", "fake"])
def test_forward_in_a_process_group(
    topology: Topology, start_runtime: StartRuntime, init_group: Callable[[int], None]
) -> None:
    """The process is rank 0 of a group of one, or of a fake group as large as the mesh."""
    mesh = ranks((topology.total,))
    expected = oracle.run_program(lambda m: output("two-layer", m), mesh)["output"]
    start_runtime(spmd=True)
    init_group(topology.total)
    assert_output(mesh, lambda m: output("two-layer", m), expected)


@pytest.mark.topologies(4)
@FUNCTIONALIZATION
@pytest.mark.upstream("pytorch/xla#9472")
def test_forward_with_the_coordinate_set(
    start_runtime: StartRuntime, functionalization: bool
) -> None:
    """The report's own way around the missing coordinate leads to the next failure."""

    def run(mesh: DeviceMesh) -> dict[str, torch.Tensor]:
        mesh._coordinate_on_dim = [0]
        return output("two-layer", mesh)

    expected = oracle.run_program(lambda m: output("two-layer", m), ranks((4,)))["output"]
    start_runtime(spmd=True)
    assert_functionalization(on=functionalization)
    assert_output(ranks((4,)), run, expected)
