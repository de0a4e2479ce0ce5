"""ShardingSpec, by which data loaders shard their batches."""

import pytest
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.spmd as xs

from harness.model.topology import Topology
from harness.oracles.sharding import Layout, Shape, Spec, check_placement
from harness.session.fixtures import StartRuntime
from suites.spmd_specs.meshes import numbered, shuffled, xla_mesh

pytestmark = [pytest.mark.lanes("cpu", "virtual-*"), pytest.mark.upstream("pytorch/xla#8606")]


INPUT_SPECS: dict[str, tuple[Shape, Spec]] = {
    "1d-first": ((8,), ("fsdp",)),
    "1d-last": ((8,), ("model",)),
    "1d-both": ((8,), (("fsdp", "model"),)),
    "1d-none": ((8,), (None,)),
    "2d-first": ((8, 4), ("fsdp", None)),
    "2d-both": ((8, 8), ("model", "fsdp")),
    "3d-last": ((2, 8, 8), (None, None, ("model", "fsdp"))),
}


@pytest.mark.topologies(1, 4)
@pytest.mark.parametrize("case", INPUT_SPECS)
def test_input_sharding(topology: Topology, start_runtime: StartRuntime, case: str) -> None:
    """ShardingSpec, which data loaders take, shards on the way to the device."""
    start_runtime(spmd=True)
    shape, spec = INPUT_SPECS[case]
    layout = Layout((topology.devices, 1), shuffled(topology.devices), ("fsdp", "model"))
    value = numbered(shape)
    sharding = xs.ShardingSpec(xla_mesh(layout), spec)
    tensor = xm.send_cpu_data_to_device([value], torch_xla.device(), sharding)[0]
    check_placement(tensor, value.numpy(), layout, spec)


@pytest.mark.topologies(4)
@pytest.mark.parametrize("case", INPUT_SPECS)
def test_sharding_spec_applied(start_runtime: StartRuntime, case: str) -> None:
    """The same specs through ShardingSpec.apply, which marks a tensor on the device."""
    start_runtime(spmd=True)
    shape, spec = INPUT_SPECS[case]
    layout = Layout((2, 2), shuffled(4), ("fsdp", "model"))
    tensor = numbered(shape).to("xla")
    xs.ShardingSpec(xla_mesh(layout), spec).apply(tensor)
    check_placement(tensor, numbered(shape).numpy(), layout, spec)
