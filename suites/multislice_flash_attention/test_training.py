"""Training with flash attention on two slices: one discovery, and one slice's loss curve."""

from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch import nn

from harness.job.ranks import run_ranks
from harness.job.slices import run_slices, shared_store
from harness.lanes.aot.optimized import read
from harness.lanes.events import EventLog
from harness.lanes.virtual.submitted import compilations
from harness.model.topology import Topology
from harness.session.fixtures import StartRuntime
from suites.multislice_flash_attention.training import (
    BATCH,
    TOLERANCE,
    Block,
    batch,
    block,
    expected_losses,
    flash,
    train,
)

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.upstream("pytorch/xla#8812", "pytorch/xla#8954", "pytorch/xla#8971"),
]


def over_slices(topology: Topology) -> tuple[Block, torch.Tensor, torch.Tensor]:
    """Return the model on the device, its attention's batch sharded over slices, and the data."""
    mesh = xs.HybridMesh(
        ici_mesh_shape=(1, topology.devices),
        dcn_mesh_shape=(topology.slices, 1),
        axis_names=("data", "model"),
    )
    spec = ("data", None, None, None)
    model = block(partial(flash, partition_spec=spec, mesh=mesh)).to("xla")
    data = [t.to("xla") for t in batch()]
    for tensor in data:
        xs.mark_sharding(tensor, mesh, ("data", None, None))
    return model, *data


def assert_sums(compiled: list[bytes], topology: Topology) -> None:
    """All that devices exchange in a step is the sum of the slices' gradients and losses."""
    summed = sum(parameter.numel() for parameter in block(flash).parameters()) + 1
    ids = range(topology.total)
    between = {frozenset(ids[place :: topology.devices]) for place in range(topology.devices)}
    assert compiled, "the steps were compiled"
    for program in compiled:
        exchanges = read(program, topology.total).collectives
        assert {exchange.kind for exchange in exchanges} == {"all-reduce"}
        assert all(set(map(frozenset, exchange.groups)) == between for exchange in exchanges)
        assert sum(exchange.bytes for exchange in exchanges) == torch.float32.itemsize * summed


def train_over_slices(topology: Topology) -> list[float]:
    model, x, y = over_slices(topology)
    with compilations() as compiled:
        losses = train(model, x, y)
    assert_sums(compiled, topology)
    return losses


def assert_curve(losses: list[float]) -> None:
    torch.testing.assert_close(losses, expected_losses(), **TOLERANCE)


@pytest.mark.long
@pytest.mark.topologies("1x1")
def test_losses_of_one_device(start_runtime: StartRuntime) -> None:
    start_runtime(spmd=False)
    assert_curve(train(block(flash).to("xla"), *(t.to("xla") for t in batch())))


@pytest.mark.long
@pytest.mark.topologies("2x1", "2x2", "1x4")
def test_losses_of_one_process(topology: Topology, start_runtime: StartRuntime) -> None:
    start_runtime(spmd=True)
    if topology.slices == 1:
        assert topology.devices == BATCH
        model = block(flash).to("xla")
        assert_curve(train(model, *(t.to("xla") for t in batch())))
    else:
        assert_curve(train_over_slices(topology))


@pytest.mark.long
@pytest.mark.topologies("2x2")
def test_one_process_meets_the_slices_once(
    tpu_events: EventLog, topology: Topology, start_runtime: StartRuntime
) -> None:
    start_runtime(spmd=True)
    losses = train_over_slices(topology)
    tpu_events.expect_discoveries(1)
    assert_curve(losses)


def slice_of(store: Path, slices: int, number: int) -> list[float]:
    """One slice's training of its part of the batch; gradients are averaged over the host."""
    dist.init_process_group(
        "gloo",
        store=shared_store(store, slices, number),
        rank=number,
        world_size=slices,
        timeout=timedelta(seconds=40),
    )

    def average(model: nn.Module) -> None:
        for parameter in model.parameters():
            gradient = parameter.grad.cpu()
            dist.all_reduce(gradient)
            parameter.grad.copy_(gradient / slices)

    x, y = (t.chunk(slices)[number].to("xla") for t in batch())
    losses = torch.tensor(train(block(flash).to("xla"), x, y, average), dtype=torch.float64)
    dist.all_reduce(losses)
    return (losses / slices).tolist()


@pytest.mark.long
@pytest.mark.topologies("2x1")
def test_losses_of_two_processes(topology: Topology, tmp_path: Path) -> None:
    (first, second) = run_slices(partial(slice_of, tmp_path / "store", 2), topology)
    assert first == second
    assert_curve(first)


@pytest.mark.long
@pytest.mark.topologies("2x1", "2x2")
def test_two_processes_meet_once(tpu_events: EventLog, topology: Topology, tmp_path: Path) -> None:
    losses, _ = run_slices(partial(slice_of, tmp_path / "store", 2), topology)
    tpu_events.expect_discoveries(1)
    assert_curve(losses)


@pytest.mark.long
@pytest.mark.topologies("2x4@chip", "2x4@slice")
@pytest.mark.deadline(240)  # each of eight processes compiles for eight devices
def test_losses_of_a_job(tpu_events: EventLog, topology: Topology) -> None:
    """The slices compute together: one model under SPMD over the devices of all processes."""

    def rank(_: int) -> list[float]:
        xr.use_spmd()
        return train_over_slices(topology)

    first, *others = run_ranks(rank, topology, deadline=220)
    tpu_events.expect_discoveries(1)
    assert all(losses == first for losses in others), f"the losses differ: {first}, {others}"
    assert_curve(first)


@pytest.mark.long
@pytest.mark.topologies("2x2")
def test_steps_after_the_first_compile_nothing(
    tpu_events: EventLog, topology: Topology, start_runtime: StartRuntime
) -> None:
    """The second training's steps have the first one's shapes."""
    start_runtime(spmd=True)
    model, x, y = over_slices(topology)
    with compilations() as compiled:
        for _ in range(2):
            before = tpu_events.read()
            train(model, x, y)
    again = tpu_events.read().after(before)
    assert again.of("execute"), "the second training ran"
    assert not again.of("compile")
    assert not again.of("client")
    assert_sums(compiled, topology)
