"""DTensor placements on torch_xla, compiled for TPUs and GPUs: what has to be exchanged.

Nothing is executed. A mesh of slices by chips makes each placement's exchanges a matter of
arithmetic; on one slice of as many chips nothing may cross (pytorch/xla#8534, #9472).
"""

from collections.abc import Sequence

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh

from harness.lanes.aot.case_compiler import CaseCompiler
from harness.model.topology import Topology
from harness.oracles.torch_dtensor import Placement
from harness.session.fixtures import StartRuntime
from suites.dtensor.layouts import S0, S1, R, case_id, quiet_upstream, ranks
from suites.dtensor.models import annotated, distribute_parameters, seeded_model

pytestmark = [
    pytest.mark.lanes("*-aot"),
    pytest.mark.topologies("2xv6e:2x2", "2xv4:2x2x1", "2xv5e:2x2", "2xh100:4"),
    pytest.mark.upstream("pytorch/xla#8534"),
    quiet_upstream,
]
ROWS, COLUMNS = 64, 128
BYTES = 4 * ROWS * COLUMNS


def mesh_of(topology: Topology) -> DeviceMesh:
    return DeviceMesh("xla", ranks((topology.slices, topology.devices)))


def annotate(
    tensor: torch.Tensor, mesh: DeviceMesh, placements: Sequence[Placement]
) -> torch.Tensor:
    """``tensor`` on the device, placed there."""
    return annotated(tensor.to("xla"), mesh, placements)


PLACEMENTS = [(S0, S1), (S1, S0), (R, S0), (S0, R), (R, R), (S0, S0)]


@pytest.mark.parametrize("placements", PLACEMENTS, ids=case_id)
def test_elementwise_exchanges_nothing(
    topology: Topology,
    start_runtime: StartRuntime,
    xla_compiler: CaseCompiler,
    placements: Sequence[Placement],
) -> None:
    """However a tensor is placed, twice the tensor is each device's own work."""
    start_runtime(spmd=True)
    mesh = mesh_of(topology)
    x = annotate(torch.ones(ROWS, COLUMNS), mesh, placements)
    result = annotated(x * 2, mesh, placements)
    program = xla_compiler.step(result).program
    assert (program.collectives, program.transfers) == ((), ())


@pytest.mark.parametrize("placements", [(S0, R), (R, S0), (S0, S1)], ids=case_id)
def test_gathering(
    topology: Topology,
    start_runtime: StartRuntime,
    xla_compiler: CaseCompiler,
    placements: Sequence[Placement],
) -> None:
    """To Replicate: what is sharded over slices crosses once, what is not does not."""
    start_runtime(spmd=True)
    mesh = mesh_of(topology)
    x = annotate(torch.ones(ROWS, COLUMNS), mesh, placements)
    program = xla_compiler.step(annotated(x * 2, mesh, (R, R))).program
    if placements[0] == R:
        assert program.transfers == ()
        assert set(program.kinds) == {"all-gather"}
    else:
        assert set(program.kinds_across) == {"ALL_GATHER"}
        assert BYTES // topology.total <= program.bytes_across <= BYTES // topology.slices


@pytest.mark.parametrize("hidden", [32, 512])
def test_forward(
    topology: Topology, start_runtime: StartRuntime, xla_compiler: CaseCompiler, hidden: int
) -> None:
    """The two-layer model, tensor parallel inside slices: the sum over chips does not cross."""
    start_runtime(spmd=True)
    mesh = mesh_of(topology)
    model = seeded_model(hidden).to("xla")
    distribute_parameters(model, mesh, annotated)
    x = annotate(torch.ones(8 * topology.slices, 10), mesh, (S0, R))
    program = xla_compiler.step(annotated(model(x), mesh, (S0, R))).program
    assert program.transfers == ()
    assert "all-reduce" in program.kinds


@pytest.mark.parametrize("hidden", [32, 512])
def test_training_step(
    topology: Topology, start_runtime: StartRuntime, xla_compiler: CaseCompiler, hidden: int
) -> None:
    """Gradients cross the slices, each chip sending its own shard; activations do not."""
    start_runtime(spmd=True)
    mesh = mesh_of(topology)
    model = seeded_model(hidden).to("xla")
    distribute_parameters(model, mesh, annotated)
    x = annotate(torch.ones(512 * topology.slices, 10), mesh, (S0, R))
    model(x).square().mean().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    program = xla_compiler.step(*model.parameters()).program
    assert set(program.kinds_across) == {"ALL_REDUCE"}
    gradients = 4 * sum(parameter.numel() for parameter in model.parameters())
    assert program.bytes_across <= 1.25 * gradients + 16 * 1024
