"""``parallelize_module`` on an "xla" mesh does what it does in DTensor."""

from datetime import timedelta

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

from harness.oracles import dtensor as oracle
from harness.oracles.torch_dtensor import distribute_tensor
from suites.dtensor.layouts import FUNCTIONALIZATION, S0, S1, R, quiet_upstream, ranks
from suites.dtensor.models import seeded_batch, seeded_model
from suites.dtensor.shards import assert_functionalization, assert_held, assert_value

pytestmark = [
    pytest.mark.lanes("cpu", "virtual-tpu"),
    pytest.mark.upstream("pytorch/xla#8534"),
    quiet_upstream,
]


def linear():
    torch.manual_seed(0)
    return nn.Linear(10, 12)


def embedding():
    torch.manual_seed(0)
    return nn.Embedding(16, 12)


def layer_norm():
    return nn.LayerNorm(10)


def tokens():
    return torch.arange(16).reshape(2, 8)


STYLES = {
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


def parallelized(style, mesh):
    make, plan, _ = STYLES[style]
    return parallelize_module(make().to(mesh.device_type), mesh, plan())


def output(style, mesh):
    """Run the parallelized module on a batch that is the same on every rank."""
    *_, batch = STYLES[style]
    return {"output": parallelized(style, mesh)(batch().to(mesh.device_type))}


def assert_output(mesh, run, expected):
    assert_value(run(DeviceMesh("xla", mesh))["output"], expected.shards[0], "the output")


@pytest.mark.topologies(1, 4)
@pytest.mark.parametrize("style", STYLES)
def test_places_the_parameters(topology, start_spmd, style):
    mesh = ranks((topology.total,))
    expected = oracle.run_program(
        lambda device_mesh: dict(parallelized(style, device_mesh).named_parameters()), mesh
    )
    start_spmd()
    parameters = dict(parallelized(style, DeviceMesh("xla", mesh)).named_parameters())
    assert set(parameters) == set(expected)
    for name, held in expected.items():
        assert parameters[name].requires_grad, f"{name} is not to be trained"
        assert_held(parameters[name], held, name)


@pytest.mark.topologies(1, 2, 4, 8)
def test_forward(topology, start_spmd):
    """The model of pytorch/xla#8534, parallelized, computes what DTensor computes."""
    mesh = ranks((topology.total,))
    expected = oracle.run_program(lambda m: output("two-layer", m), mesh)["output"]
    start_spmd()
    assert_output(mesh, lambda m: output("two-layer", m), expected)


@pytest.mark.topologies(4)
@pytest.mark.parametrize("style", sorted(STYLES.keys() - {"two-layer"}))
def test_forward_of_a_style(topology, start_spmd, style):
    expected = oracle.run_program(lambda m: output(style, m), ranks((4,)))["output"]
    start_spmd()
    assert_output(ranks((4,)), lambda m: output(style, m), expected)


@pytest.mark.topologies(4)
def test_sequence_parallel(topology, start_spmd):
    """The sequence, dimension 1, is sharded; the parameters are replicated."""

    def program(mesh):
        module = parallelize_module(
            layer_norm().to(mesh.device_type), mesh, SequenceParallel(use_local_output=False)
        )
        batch = distribute_tensor(seeded_batch().unsqueeze(0), mesh, (S1,))
        return {"output": module(batch)}

    held = oracle.run_program(program, ranks((4,)))["output"]
    start_spmd()
    placed = program(DeviceMesh("xla", ranks((4,))))["output"]
    assert_value(placed, torch.cat(held.shards, dim=1), "the output")


@pytest.mark.topologies(4)
def test_prepare_module_input(topology, start_spmd):
    def program(mesh):
        style = PrepareModuleInput(input_layouts=(R,), desired_input_layouts=(S0,))
        module = parallelize_module(nn.Identity(), mesh, style)
        return {"output": module(seeded_batch().to(mesh.device_type))}

    expected = oracle.run_program(program, ranks((4,)))["output"]
    start_spmd()
    placed = program(DeviceMesh("xla", ranks((4,))))["output"]
    assert_value(placed, torch.cat(expected.shards), "the output")


def gloo_group(world_size):
    dist.init_process_group(
        "gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=timedelta(seconds=10)
    )


def fake_group(world_size):
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)


@pytest.mark.topologies(1, 4)
@pytest.mark.environment(GLOO_SOCKET_IFNAME="lo")
@pytest.mark.parametrize("init_group", [gloo_group, fake_group], ids=["gloo", "fake"])
def test_forward_in_a_process_group(topology, start_spmd, init_group):
    """The process is rank 0 of a group of one, or of a fake group as large as the mesh."""
    mesh = ranks((topology.total,))
    expected = oracle.run_program(lambda m: output("two-layer", m), mesh)["output"]
    start_spmd()
    init_group(topology.total)
    assert_output(mesh, lambda m: output("two-layer", m), expected)


@pytest.mark.topologies(4)
@FUNCTIONALIZATION
@pytest.mark.upstream("pytorch/xla#9472")
def test_forward_with_the_coordinate_set(topology, start_spmd, functionalization):
    """The report's own way around the missing coordinate leads to the next failure."""

    def run(mesh):
        mesh._coordinate_on_dim = [0]
        return output("two-layer", mesh)

    expected = oracle.run_program(lambda m: output("two-layer", m), ranks((4,)))["output"]
    start_spmd()
    assert_functionalization(on=functionalization)
    assert_output(ranks((4,)), run, expected)
