"""The two-layer model of pytorch/xla#8534 computes and trains the same under DTensor and XLA."""

from collections.abc import Callable, Mapping
from functools import partial

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from harness.model.topology import Topology
from harness.oracles import dtensor as oracle
from harness.session.fixtures import StartRuntime
from suites.dtensor.layouts import FUNCTIONALIZATION, quiet_upstream, ranks
from suites.dtensor.models import (
    TENSOR_PARALLEL,
    Place,
    annotated,
    distribute_parameters,
    distributed,
    forward,
    seeded_model,
    train,
    whole,
)
from suites.dtensor.shards import assert_close_to_held, assert_functionalization, assert_value

pytestmark = [
    pytest.mark.lanes("cpu", "virtual-*"),
    pytest.mark.upstream("pytorch/xla#8534", "pytorch/xla#9472"),
    quiet_upstream,
]

Run = Callable[[nn.Module, DeviceMesh, Place], dict[str, torch.Tensor]]
PLACE = pytest.mark.parametrize("place", [distributed, annotated], ids=["distributed", "annotated"])


def reference(mesh: torch.Tensor, run: Run, hidden: int = 32) -> dict[str, oracle.Held]:
    """Run the program with real DTensor."""

    def program(device_mesh: DeviceMesh) -> dict[str, torch.Tensor]:
        model = seeded_model(hidden)
        distribute_parameters(model, device_mesh, distributed)
        return whole(run(model, device_mesh, distributed))

    return oracle.run_program(program, mesh)


def on_xla(mesh: torch.Tensor, place: Place, run: Run, hidden: int = 32) -> dict[str, torch.Tensor]:
    """Run the program with torch_xla."""
    model = seeded_model(hidden).to("xla")
    device_mesh = DeviceMesh("xla", mesh)
    distribute_parameters(model, device_mesh, place)
    return run(model, device_mesh, place)


def assert_same(results: Mapping[str, torch.Tensor], expected: Mapping[str, oracle.Held]) -> None:
    """Compare values of outputs and gradients, and the shards of parameters."""
    assert set(results) == set(expected)
    for name, held in expected.items():
        if name in TENSOR_PARALLEL:
            assert_close_to_held(results[name], held, name)
        else:
            assert_value(results[name], held.shards[0], name)


@pytest.mark.topologies(1, 2, 4, 8)
@FUNCTIONALIZATION
def test_forward(topology: Topology, start_runtime: StartRuntime, functionalization: bool) -> None:
    """A forward through the distributed parameters runs."""
    mesh = ranks((topology.total,))
    expected = reference(mesh, forward)
    start_runtime(spmd=True)
    assert_functionalization(on=functionalization)
    assert_same(on_xla(mesh, distributed, forward), expected)


@pytest.mark.topologies(1, 2, 4, 8)
@FUNCTIONALIZATION
def test_forward_through_annotated_parameters(
    topology: Topology, start_runtime: StartRuntime, functionalization: bool
) -> None:
    """What works in 2.9.0 with functionalization on: go on with the module's own parameters."""
    mesh = ranks((topology.total,))
    expected = reference(mesh, forward)
    start_runtime(spmd=True)
    assert_functionalization(on=functionalization)
    assert_same(on_xla(mesh, annotated, forward), expected)


@pytest.mark.topologies(4)
@FUNCTIONALIZATION
@PLACE
def test_training_step(
    topology: Topology, start_runtime: StartRuntime, place: Place, functionalization: bool
) -> None:
    """Gradients are DTensor's, and after the step every device holds its updated shard."""
    mesh = ranks((topology.total,))
    expected = reference(mesh, train)
    start_runtime(spmd=True)
    assert_functionalization(on=functionalization)
    assert_same(on_xla(mesh, place, train), expected)


@pytest.mark.topologies(8)
@FUNCTIONALIZATION
@PLACE
def test_data_and_tensor_parallel(
    start_runtime: StartRuntime, place: Place, functionalization: bool
) -> None:
    """The batch is split over the first mesh dimension, the model over the second."""
    mesh = ranks((2, 4))
    expected = reference(mesh, train)
    start_runtime(spmd=True)
    assert_functionalization(on=functionalization)
    assert_same(on_xla(mesh, place, train), expected)


@pytest.mark.topologies(4)
@PLACE
@pytest.mark.environment(XLA_DISABLE_FUNCTIONALIZATION="1")
def test_hidden_size_not_divisible(start_runtime: StartRuntime, place: Place) -> None:
    expected = reference(ranks((4,)), train, hidden=13)
    start_runtime(spmd=True)
    assert_same(on_xla(ranks((4,)), place, train, hidden=13), expected)


@pytest.mark.long
@pytest.mark.topologies(4)
@pytest.mark.environment(XLA_DISABLE_FUNCTIONALIZATION="1")
def test_three_training_steps(start_runtime: StartRuntime) -> None:
    three_steps = partial(train, steps=3)
    expected = reference(ranks((4,)), three_steps)
    start_runtime(spmd=True)
    assert_same(on_xla(ranks((4,)), distributed, three_steps), expected)
