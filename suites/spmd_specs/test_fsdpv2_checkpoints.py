"""Checkpoints of FSDPv2 models, 0-d entries included, into models with shards of their own."""

import copy
from pathlib import Path

import pytest
import torch
import torch_xla.experimental.distributed_checkpoint as xc
from torch.distributed import checkpoint
from torch_xla.experimental.spmd_fully_sharded_data_parallel import (
    SpmdFullyShardedDataParallel as FSDPv2,
)

from harness.model.topology import Topology
from harness.oracles.sharding import Layout
from harness.session.fixtures import StartRuntime
from suites.shared.execution import settle
from suites.spmd_specs.meshes import shuffled, xla_mesh
from suites.spmd_specs.models import Net
from suites.spmd_specs.twins import ADAM, AXES, Twins, fsdp_layout, models

pytestmark = [
    pytest.mark.lanes("cpu", "virtual-*"),
    pytest.mark.upstream("pytorch/xla#8522", "pytorch/xla#7215"),
    pytest.mark.filterwarnings(
        "ignore:Full backward hook is firing",  # FSDPv2's own hook, on inputs without gradients
        "ignore:.*backward hooks to be called",
    ),
]


CHECKPOINTED = {
    "same-mesh": (1, 1),
    "other-device-order": (1, 5),
    "other-mesh-shape": (2, 1),
}


@pytest.mark.long
@pytest.mark.topologies(4)
@pytest.mark.filterwarnings(
    "ignore:TypedStorage is deprecated",
    "ignore:torch.distributed is disabled",
    "ignore:The function definition for SavePlanner",
    "ignore:Using a non-tuple sequence",
)
@pytest.mark.parametrize("target", CHECKPOINTED)
def test_distributed_checkpoint(
    topology: Topology, start_runtime: StartRuntime, tmp_path: Path, target: str
) -> None:
    """Model and Adam state, 0-d entries included, into another model with shards of its own."""
    start_runtime(spmd=True)
    replicas, seed = CHECKPOINTED[target]
    source_layout = fsdp_layout(topology.devices)
    layout = Layout(
        (replicas, topology.devices // replicas), shuffled(topology.devices, seed), AXES
    )
    adam = ADAM
    inner, reference = models()
    model = FSDPv2(inner, mesh=xla_mesh(source_layout))
    source = {
        "optimizer": Twins(model, reference, source_layout).train(adam).state_dict(),
        "model": model.state_dict(),
    }
    writer = checkpoint.FileSystemWriter(tmp_path)
    checkpoint.save(source, storage_writer=writer, planner=xc.SPMDSavePlanner())

    other = FSDPv2(models()[0], mesh=xla_mesh(layout))
    optimizer = adam(other.parameters())
    xc.prime_optimizer(optimizer)
    restored = {"optimizer": optimizer.state_dict(), "model": other.state_dict()}
    reader = checkpoint.FileSystemReader(tmp_path)
    checkpoint.load(restored, storage_reader=reader, planner=xc.SPMDLoadPlanner())
    reference.zero_grad()
    Twins(other, reference, layout).check()
    _check_states(source["optimizer"], restored["optimizer"])


def _check_states(source: dict[str, object], restored: dict[str, object]) -> None:
    leaves, _ = torch.utils._pytree.tree_flatten(source)
    others, _ = torch.utils._pytree.tree_flatten(restored)
    for leaf, other in zip(leaves, others, strict=True):
        if isinstance(leaf, torch.Tensor):
            torch.testing.assert_close(other.cpu(), leaf.cpu(), rtol=0, atol=0)
        else:
            assert other == leaf


@pytest.mark.topologies(1, 4)
def test_state_dict_from_host(
    topology: Topology, start_runtime: StartRuntime, tmp_path: Path
) -> None:
    """Through torch.save of host tensors, as most users do: the target keeps its shards."""
    start_runtime(spmd=True)
    layout = fsdp_layout(topology.devices, min(2, topology.devices))
    torch.manual_seed(3)
    reference = Net()
    source = FSDPv2(copy.deepcopy(reference), mesh=xla_mesh(fsdp_layout(topology.devices)))
    torch.save({k: v.cpu() for k, v in source.state_dict().items()}, tmp_path / "model.pt")
    model = FSDPv2(models()[0], mesh=xla_mesh(layout))
    model.load_state_dict(torch.load(tmp_path / "model.pt"))
    settle()
    Twins(model, reference, layout).check()


@pytest.mark.topologies(4)
@pytest.mark.parametrize("source", ["sharded", "unsharded"])
def test_state_dict_from_device(
    topology: Topology, start_runtime: StartRuntime, source: str
) -> None:
    """From tensors on the device that are sharded otherwise, or not at all."""
    start_runtime(spmd=True)
    layout = fsdp_layout(topology.devices, 2)
    torch.manual_seed(3)
    reference = Net()
    if source == "sharded":
        donor = FSDPv2(copy.deepcopy(reference), mesh=xla_mesh(fsdp_layout(topology.devices)))
        state = donor.module.state_dict()
    else:
        state = copy.deepcopy(reference).to("xla").state_dict()
    model = FSDPv2(models()[0], mesh=xla_mesh(layout))
    model.module.load_state_dict(state)
    settle()
    Twins(model, reference, layout).check()
