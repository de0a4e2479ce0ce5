"""``distribute_module`` on an "xla" mesh does what it does in DTensor."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from harness.model.topology import Topology
from harness.oracles import dtensor as oracle
from harness.oracles.torch_dtensor import distribute_module, distribute_tensor
from harness.session.fixtures import StartRuntime
from suites.dtensor.layouts import FUNCTIONALIZATION, S0, R, quiet_upstream, ranks
from suites.dtensor.models import seeded_batch, seeded_model
from suites.dtensor.shards import assert_functionalization, assert_held, assert_value
from suites.shared.torch_xla_releases import since_2_9

pytestmark = [
    pytest.mark.lanes("cpu", "virtual-*"),
    pytest.mark.upstream("pytorch/xla#8534"),
    quiet_upstream,
]


def shard_rows(_: str, module: nn.Module, mesh: DeviceMesh) -> None:
    """Shard every parameter of a layer by rows: a partition_fn."""
    for key, parameter in list(module.named_parameters(recurse=False)):
        module.register_parameter(key, nn.Parameter(distribute_tensor(parameter, mesh, (S0,))))


@pytest.mark.topologies(1, 4)
def test_partition_fn(
    topology: Topology, start_runtime: StartRuntime, subtests: pytest.Subtests
) -> None:
    def program(mesh: DeviceMesh) -> dict[str, torch.Tensor]:
        module = distribute_module(seeded_model().to(mesh.device_type), mesh, shard_rows)
        return dict(module.named_parameters())

    held = oracle.run_program(program, ranks((topology.total,)))
    start_runtime(spmd=True)
    parameters = program(DeviceMesh("xla", ranks((topology.total,))))
    assert set(parameters) == set(held)
    for name, expected in held.items():
        with subtests.test(parameter=name):
            assert_held(parameters[name], expected, name)


@pytest.mark.topologies(1, 4)
def test_replicates_by_default(topology: Topology, start_runtime: StartRuntime) -> None:
    def program(mesh: DeviceMesh) -> dict[str, torch.Tensor]:
        module = distribute_module(seeded_model().to(mesh.device_type), mesh)
        result = module(distribute_tensor(seeded_batch(), mesh, (R,)))
        return {"output": result.full_tensor() if mesh.device_type == "cpu" else result}

    expected = oracle.run_program(program, ranks((topology.total,)))["output"]
    start_runtime(spmd=True)
    placed = program(DeviceMesh("xla", ranks((topology.total,))))["output"]
    assert_value(placed, expected.shards[0], "the output")


@pytest.mark.topologies(4)
@FUNCTIONALIZATION
def test_input_fn_and_output_fn(start_runtime: StartRuntime, functionalization: bool) -> None:
    """input_fn shards the batch before the module, output_fn changes what leaves it."""

    def shard_batch(_: nn.Module, inputs: Any, mesh: DeviceMesh) -> torch.Tensor:
        return distribute_tensor(inputs[0], mesh, (S0,))

    def negate(_: nn.Module, outputs: Any, __: DeviceMesh) -> Any:
        return -outputs

    def program(mesh: DeviceMesh) -> dict[str, torch.Tensor]:
        module = distribute_module(nn.ReLU(), mesh, None, input_fn=shard_batch, output_fn=negate)
        result = module(seeded_batch())
        return {"output": result.full_tensor() if mesh.device_type == "cpu" else result}

    expected = oracle.run_program(program, ranks((4,)))["output"]
    start_runtime(spmd=True)
    assert_functionalization(on=functionalization)
    placed = program(DeviceMesh("xla", ranks((4,))))["output"]
    assert_value(placed, expected.shards[0], "the output")


@pytest.mark.topologies(4)
@pytest.mark.parametrize("hook", ["input_fn", "output_fn"])
def test_hook_with_too_few_arguments(start_runtime: StartRuntime, hook: str) -> None:
    start_runtime(spmd=True)
    with pytest.raises(ValueError, match=f"{hook} should take in 3 arguments, but got 1"):
        distribute_module(
            nn.ReLU(), DeviceMesh("xla", ranks((4,))), **{hook: lambda module: module}
        )


@pytest.mark.topologies(4)
@since_2_9
def test_hooks_of_older_code(start_runtime: StartRuntime) -> None:
    """Hooks that don't take the module still work, with a warning, and get the given mesh."""
    start_runtime(spmd=True)
    mesh = DeviceMesh("xla", ranks((4,)))
    meshes: list[DeviceMesh] = []

    def before(inputs: Any, own: DeviceMesh) -> torch.Tensor:
        meshes.append(own)
        return distribute_tensor(inputs[0] * 2, own, (S0,))

    def after(outputs: Any, own: DeviceMesh) -> Any:
        meshes.append(own)
        return outputs + 1

    with pytest.warns(UserWarning, match="Deprecating") as warned:
        module = distribute_module(nn.ReLU(), mesh, input_fn=before, output_fn=after)
    texts = [str(each.message) for each in warned if "Deprecating" in str(each.message)]
    assert [text.split()[1] for text in texts] == ["input_fn", "output_fn"]
    result = module(seeded_batch().to("xla"))
    torch.testing.assert_close(result.cpu(), torch.relu(seeded_batch() * 2) + 1)
    assert meshes == [mesh, mesh]


@pytest.mark.lanes("virtual-tpu")
@pytest.mark.topologies(4)
@pytest.mark.upstream("pytorch/xla#6322")
@pytest.mark.emulated
@since_2_9
def test_automatic_policy(start_runtime: StartRuntime) -> None:
    """The module goes to the devices, and the compiler is to shard it, which only a TPU's does."""
    from torch_xla.distributed.spmd.api import auto_policy

    start_runtime(spmd=True)
    mesh = DeviceMesh("xla", ranks((4,)))
    module = distribute_module(seeded_model(), mesh, auto_policy)
    assert {p.device.type for p in module.parameters()} == {"xla"}
    with pytest.raises(RuntimeError, match="the program is to be sharded automatically"):
        module(seeded_batch().to("xla")).cpu()
    with pytest.raises(AssertionError, match="requires module to be on cpu"):
        distribute_module(module, mesh, auto_policy)
