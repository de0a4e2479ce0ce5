"""DTensor programs of a job of ranks, compiled by libtpu: what chips and slices have to exchange.

As in ``test_compiles.py``, but of TorchTPU, where a rank submits the part of each tensor that it
has, and DTensor itself decides what is exchanged (pytorch/xla#8534, #9472).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh

from harness.lanes.aot.case_compiler import CaseCompiler
from harness.model.topology import Target, Topology
from harness.oracles.torch_dtensor import Placement
from suites.dtensor.layouts import S0, S1, R, placements_id, ranks
from suites.dtensor.models import distribute_parameters, distributed, seeded_model
from suites.shared.compiling import Step, as_one, compile_steps

pytestmark = [
    pytest.mark.lanes("tpu-aot"),
    pytest.mark.frameworks("torch_tpu"),
    pytest.mark.topologies("2xv6e:2x2", "2xv5e:2x2"),
    pytest.mark.upstream("pytorch/xla#8534"),
    pytest.mark.deadline(120),
]
ROWS, COLUMNS = 64, 128
BYTES = 4 * ROWS * COLUMNS
Placements = Sequence[Placement]
PLACEMENTS: list[Placements] = [(S0, S1), (S1, S0), (R, S0), (S0, R), (R, R), (S0, S0)]


def mesh_of(topology: Topology) -> DeviceMesh:
    return DeviceMesh("tpu", ranks((topology.slices, topology.devices)))


def placed(
    topology: Topology, of: Callable[[torch.Tensor], object], layouts: Sequence[Placements]
) -> Callable[[torch.device], Mapping[str, Step]]:
    """``of`` a DTensor, for each way to place it on the mesh of slices by chips."""

    def prepare(device: torch.device) -> Mapping[str, Step]:
        mesh = mesh_of(topology)
        return {
            placements_id(placements): step(
                distributed(torch.ones(ROWS, COLUMNS).to(device), mesh, placements)
            )
            for placements in layouts
        }

    def step(x: torch.Tensor) -> Step:
        return lambda: of(x)

    return prepare


def test_elementwise_exchanges_nothing(
    xla_target: Target, xla_compiler: CaseCompiler, subtests: pytest.Subtests
) -> None:
    """However a tensor is placed, twice the tensor is each device's own work."""
    prepare = placed(xla_target.topology, lambda x: x * 2, PLACEMENTS)
    for name, programs in compile_steps(xla_compiler, xla_target, prepare).items():
        with subtests.test(name):
            together = as_one(programs)
            assert (together.collectives, together.transfers) == ((), ())


def test_gathering(
    xla_target: Target, xla_compiler: CaseCompiler, subtests: pytest.Subtests
) -> None:
    """To Replicate: what is sharded over slices crosses once, what is not does not."""
    topology = xla_target.topology
    prepare = placed(topology, lambda x: x.full_tensor(), [(S0, R), (R, S0), (S0, S1)])
    compiled = compile_steps(xla_compiler, xla_target, prepare)
    for name, programs in compiled.items():
        with subtests.test(name):
            together = as_one(programs)
            if name == placements_id((R, S0)):
                assert together.transfers == ()
                assert set(together.kinds) == {"all-gather"}
            else:
                assert set(together.kinds_across) == {"ALL_GATHER"}
                crossing = together.bytes_across
                assert BYTES // topology.total <= crossing <= BYTES // topology.slices


def training(topology: Topology, hidden: int) -> Callable[[torch.device], Mapping[str, Step]]:
    """Return the two-layer model's steps: tensor parallel in slices, data parallel over them."""

    def prepare(device: torch.device) -> Mapping[str, Step]:
        mesh = mesh_of(topology)
        model = seeded_model(hidden).to(device)
        distribute_parameters(model, mesh, distributed)
        x = distributed(torch.ones(512 * topology.slices, 10).to(device), mesh, (S0, R))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss: list[torch.Tensor] = []

        def forward() -> None:
            loss.append(model(x).redistribute(placements=(S0, R)).square().mean())

        def backward() -> None:
            loss[0].backward()
            optimizer.step()

        return {"forward": forward, "backward": backward}

    return prepare


@pytest.mark.parametrize("hidden", [32, 512])
def test_training_step(xla_target: Target, xla_compiler: CaseCompiler, hidden: int) -> None:
    """The sum over chips does not cross, and of the gradients each chip sends its own shard."""
    steps = compile_steps(xla_compiler, xla_target, training(xla_target.topology, hidden))
    forward, backward = as_one(steps["forward"]), as_one(steps["backward"])
    assert forward.transfers == ()
    assert "all-reduce" in forward.kinds
    assert set(backward.kinds_across) == {"ALL_REDUCE"}
    gradients = 4 * sum(parameter.numel() for parameter in seeded_model(hidden).parameters())
    assert backward.bytes_across <= 1.25 * gradients + 16 * 1024
