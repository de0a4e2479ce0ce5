"""SPMD programs compiled for TPUs and GPUs: what a spec on a mesh over slices makes them exchange.

Nothing is executed. The oracles are arithmetic (which axis a sum goes over says which bytes must
cross), the same program written in JAX and compiled for the same devices by the same partitioner,
and a control: on one slice of as many chips nothing may cross (pytorch/xla#5478, #7102, #8522).
"""

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
import torch_xla.distributed.spmd as xs
from torch_xla.experimental.spmd_fully_sharded_data_parallel import (
    SpmdFullyShardedDataParallel as FSDPv2,
)

from harness.lanes.aot.case_compiler import CaseCompiler
from harness.lanes.aot.optimized import Optimized
from harness.model.topology import Topology
from harness.oracles.sharding import Spec
from harness.session.fixtures import StartRuntime
from suites.spmd_specs.meshes import hybrid_mesh
from suites.spmd_specs.models import Block
from suites.spmd_specs.twins import AXES

pytestmark = [
    pytest.mark.lanes("*-aot"),
    pytest.mark.upstream("pytorch/xla#5478", "pytorch/xla#7102"),
]
TWO_SLICES = ("2xv6e:2x2", "2xv5e:2x4", "2xv4:2x2x1", "2xh100:4")
NAMES = ("slice", "chip")


def mesh_over(
    topology: Topology, names: tuple[str, ...] = NAMES, *, transposed: bool = False
) -> xs.Mesh:
    """Return a mesh with one axis over the slices and the other over each slice's chips."""
    shape = (topology.slices, topology.devices)
    if topology.slices == 1:
        half = topology.devices // 2
        return xs.Mesh(np.arange(topology.total), (2, half), names)
    inner, outer = (1, shape[1]), (shape[0], 1)
    if transposed:
        inner, outer = inner[::-1], outer[::-1]
    return hybrid_mesh(inner, outer, names)


def placed(shape: tuple[int, ...], mesh: xs.Mesh, spec: Spec) -> torch.Tensor:
    """Ones on the device, sharded by ``spec``."""
    tensor = torch.ones(shape).to("xla")
    xs.mark_sharding(tensor, mesh, spec)
    return tensor


# Activations [rows, width] by weights [width, width]: large against the sums of a gradient's rows.
ROWS, WIDTH = 1024, 256


def two_layers(mesh: xs.Mesh) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """Megatron's pair: rows over the first axis, weights over the second, which is summed over."""
    x = placed((ROWS, WIDTH), mesh, (NAMES[0], None))
    first = placed((WIDTH, WIDTH), mesh, (None, NAMES[1])).requires_grad_()
    second = placed((WIDTH, WIDTH), mesh, (NAMES[1], None)).requires_grad_()
    return (first, second), torch.relu(x @ first) @ second


@pytest.mark.topologies(*TWO_SLICES, "v6e:2x4", "h100:8")
def test_sum_over_chips_stays_inside(
    topology: Topology, start_runtime: StartRuntime, xla_compiler: CaseCompiler
) -> None:
    """Tensor parallel in each slice: the sum of activations is the chips' alone."""
    start_runtime(spmd=True)
    _, result = two_layers(mesh_over(topology))
    program = xla_compiler.step(result).program
    assert program.bytes_across == 0, program.transfers
    assert program.collectives, "the sum over the chips is gone"


@pytest.mark.topologies(*TWO_SLICES)
def test_sum_over_slices_crosses(
    topology: Topology, start_runtime: StartRuntime, xla_compiler: CaseCompiler
) -> None:
    """The same on a transposed mesh: now each device sends its activations to the other slice."""
    start_runtime(spmd=True)
    _, result = two_layers(mesh_over(topology, transposed=True))
    program = xla_compiler.step(result).program
    assert program.bytes_across >= 4 * ROWS // topology.devices * WIDTH // topology.slices


@pytest.mark.topologies(*TWO_SLICES, "v6e:2x4", "h100:8")
def test_gradients_cross_once(
    topology: Topology, start_runtime: StartRuntime, xla_compiler: CaseCompiler
) -> None:
    """Data parallel over slices: each chip sends its shard of the gradients, and nothing else."""
    start_runtime(spmd=True)
    weights, result = two_layers(mesh_over(topology))
    result.square().mean().backward()
    program = xla_compiler.step(*(weight.grad for weight in weights)).program
    shards = 2 * 4 * WIDTH * WIDTH // topology.devices
    if topology.slices == 1:
        assert program.bytes_across == 0
    else:
        assert shards <= program.bytes_across <= 1.05 * shards, program.transfers


def moved(tensor: torch.Tensor, mesh: xs.Mesh, spec: Spec) -> torch.Tensor:
    """Copy the tensor, sharded by another spec."""
    result = tensor * 2
    xs.mark_sharding(result, mesh, spec)
    return result


S, C = NAMES
MOVES: dict[str, tuple[Spec, Spec]] = {
    "gather-chips": ((C, None), (None, None)),
    "gather-slices": ((S, None), (None, None)),
    "gather-both": ((NAMES, None), (None, None)),
    "chips-to-columns": ((C, None), (None, C)),
    "slices-to-columns": ((S, None), (None, S)),
    "swap": ((S, C), (C, S)),
    "shard": ((None, None), (C, S)),
    "keep": ((S, C), (S, C)),
}


@pytest.mark.topologies(*TWO_SLICES)
@pytest.mark.parametrize("move", MOVES)
def test_moves_what_jax_moves(
    topology: Topology, start_runtime: StartRuntime, xla_compiler: CaseCompiler, move: str
) -> None:
    """From one spec to another, the exchanges are those of JAX with the same partitioner."""
    start_runtime(spmd=True)
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    jax.config.update("jax_use_shardy_partitioner", False)
    before, after = MOVES[move]
    mesh = mesh_over(topology)
    ours = xla_compiler.step(moved(placed((ROWS, WIDTH), mesh, before), mesh, after)).program
    devices = np.array(xla_compiler.devices)[list(mesh.device_ids)].reshape(mesh.mesh_shape)
    over = Mesh(devices, NAMES)
    shardings = [NamedSharding(over, PartitionSpec(*spec)) for spec in (before, after)]
    argument = jax.ShapeDtypeStruct((ROWS, WIDTH), np.float32, sharding=shardings[0])
    theirs = xla_compiler.jax(
        lambda x: jax.lax.with_sharding_constraint(x * 2, shardings[1]), argument
    ).program
    assert exchanges(ours) == exchanges(theirs)


def exchanges(program: Optimized) -> tuple[list[Any], list[Any]]:
    """All of a program, whatever the order of its groups."""
    inside = [(c.kind, set(c.groups), c.bytes, c.count) for c in program.collectives]
    across = [(t.kind, set(t.groups), t.sent, t.received, t.count) for t in program.transfers]
    return sorted(inside, key=str), across


@pytest.mark.topologies("2xv6e:2x2", "2xv5e:2x2", "2xv4:2x2x1", "v5e:4x4", "2xh100:4", "h100:8")
@pytest.mark.upstream("pytorch/xla#8522")
@pytest.mark.filterwarnings("ignore:Full backward hook is firing")  # FSDPv2's own hook
@pytest.mark.parametrize("across", ["data", "fsdp"])
def test_fsdp_with_scalars(
    topology: Topology, start_runtime: StartRuntime, xla_compiler: CaseCompiler, across: str
) -> None:
    """A training step of FSDPv2 around 0-d parameters, over slices as data or as shards.

    Slices that hold replicas exchange gradients only; shards over slices must be gathered, too.
    """
    start_runtime(spmd=True)
    torch.manual_seed(0)
    mesh = fsdp_mesh(topology, across)
    model = FSDPv2(copy.deepcopy(Block()), mesh=mesh, extra_data_axis="data")
    x = placed((16 * topology.total, 8), mesh, (AXES, None))
    loss = model(x).square().mean()
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    parameters = list(model.parameters())
    assert any(parameter.dim() == 0 for parameter in parameters)
    program = xla_compiler.step(loss, *parameters).program
    if topology.slices == 1:
        assert program.bytes_across == 0
    elif across == "data":
        assert set(program.kinds_across) == {"ALL_REDUCE"}, program.transfers
    else:
        assert "ALL_GATHER" in program.kinds_across, program.transfers


def fsdp_mesh(topology: Topology, across: str) -> xs.Mesh:
    if topology.slices == 1:
        shape = (2, topology.total // 2) if across == "data" else (1, topology.total)
        return xs.Mesh(np.arange(topology.total), shape, AXES)
    outer = (topology.slices, 1) if across == "data" else (1, topology.slices)
    return hybrid_mesh((1, topology.devices), outer, AXES)


@pytest.mark.topologies("2xv6e:2x2", "v6e:4x4", "v5p:2x2x2", "2xh100:4", "h100:8")
@pytest.mark.upstream("pytorch/xla#8522")
@pytest.mark.parametrize("shape", [(), (1,), (3, 5)], ids=["scalar", "one", "not-divisible"])
def test_small_tensors_shard(
    topology: Topology,
    start_runtime: StartRuntime,
    xla_compiler: CaseCompiler,
    shape: tuple[int, ...],
) -> None:
    """A 0-d tensor has the empty spec; what does not divide is padded. The compiler takes both."""
    start_runtime(spmd=True)
    mesh = mesh_over(topology)
    spec = (NAMES, *(None,) * (len(shape) - 1)) if shape else ()
    compiled = xla_compiler.step(placed(shape, mesh, spec) * 3)
    padded = math.ceil(shape[0] / topology.total) * math.prod(shape[1:]) if shape else 1
    assert compiled.memory.outputs >= 4 * padded
