"""The two-layer model of pytorch/xla#8534 computes and trains the same under DTensor and XLA."""

from functools import partial

import pytest
from torch.distributed.device_mesh import DeviceMesh

from harness.oracles import dtensor as oracle
from suites.dtensor.layouts import FUNCTIONALIZATION, quiet_upstream, ranks
from suites.dtensor.models import (
    TENSOR_PARALLEL,
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
    pytest.mark.lanes("cpu", "virtual-tpu"),
    pytest.mark.upstream("pytorch/xla#8534", "pytorch/xla#9472"),
    quiet_upstream,
]

PLACE = pytest.mark.parametrize("place", [distributed, annotated], ids=["distributed", "annotated"])


def reference(mesh, run, hidden=32):
    """Run the program with real DTensor."""

    def program(device_mesh):
        model = seeded_model(hidden)
        distribute_parameters(model, device_mesh, distributed)
        return whole(run(model, device_mesh, distributed))

    return oracle.run_program(program, mesh)


def on_xla(mesh, place, run, hidden=32):
    """Run the program with torch_xla."""
    model = seeded_model(hidden).to("xla")
    device_mesh = DeviceMesh("xla", mesh)
    distribute_parameters(model, device_mesh, place)
    return run(model, device_mesh, place)


def assert_same(results, expected):
    """Compare values of outputs and gradients, and the shards of parameters."""
    assert set(results) == set(expected)
    for name, held in expected.items():
        if name in TENSOR_PARALLEL:
            assert_close_to_held(results[name], held, name)
        else:
            assert_value(results[name], held.shards[0], name)


@pytest.mark.topologies(1, 2, 4, 8)
@FUNCTIONALIZATION
def test_forward(topology, start_spmd, functionalization):
    """A forward through the distributed parameters runs."""
    mesh = ranks((topology.total,))
    expected = reference(mesh, forward)
    start_spmd()
    assert_functionalization(on=functionalization)
    assert_same(on_xla(mesh, distributed, forward), expected)


@pytest.mark.topologies(1, 2, 4, 8)
@FUNCTIONALIZATION
def test_forward_through_annotated_parameters(topology, start_spmd, functionalization):
    """What works in 2.9.0 with functionalization on: go on with the module's own parameters."""
    mesh = ranks((topology.total,))
    expected = reference(mesh, forward)
    start_spmd()
    assert_functionalization(on=functionalization)
    assert_same(on_xla(mesh, annotated, forward), expected)


@pytest.mark.topologies(4)
@FUNCTIONALIZATION
@PLACE
def test_training_step(topology, start_spmd, place, functionalization):
    """Gradients are DTensor's, and after the step every device holds its updated shard."""
    mesh = ranks((topology.total,))
    expected = reference(mesh, train)
    start_spmd()
    assert_functionalization(on=functionalization)
    assert_same(on_xla(mesh, place, train), expected)


@pytest.mark.topologies(8)
@FUNCTIONALIZATION
@PLACE
def test_data_and_tensor_parallel(topology, start_spmd, place, functionalization):
    """The batch is split over the first mesh dimension, the model over the second."""
    mesh = ranks((2, 4))
    expected = reference(mesh, train)
    start_spmd()
    assert_functionalization(on=functionalization)
    assert_same(on_xla(mesh, place, train), expected)


@pytest.mark.topologies(4)
@PLACE
@pytest.mark.environment(XLA_DISABLE_FUNCTIONALIZATION="1")
def test_hidden_size_not_divisible(topology, start_spmd, place):
    expected = reference(ranks((4,)), train, hidden=13)
    start_spmd()
    assert_same(on_xla(ranks((4,)), place, train, hidden=13), expected)


@pytest.mark.topologies(4)
@pytest.mark.environment(XLA_DISABLE_FUNCTIONALIZATION="1")
def test_three_training_steps(topology, start_spmd):
    three_steps = partial(train, steps=3)
    expected = reference(ranks((4,)), three_steps)
    start_spmd()
    assert_same(on_xla(ranks((4,)), distributed, three_steps), expected)
