"""Every collective compiled for TPUs and GPUs: over which devices, and what goes to other slices.

torch_xla traces and exports, the vendor's compiler compiles for topologies that are not there;
nothing is executed. The oracle is arithmetic over the replica groups: a collective whose groups
stay in a slice must leave nothing to the hosts, and one that spans slices sends no more than its
algorithm must (pytorch/xla#8854, #8850).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch_xla.core import xla_model as xm

from harness.lanes.aot.case_compiler import CaseCompiler
from harness.model.topology import Topology
from harness.session.fixtures import StartRuntime
from suites.collectives.compiled import BYTES, SHAPE, check_exchange, must_send
from suites.collectives.conftest import fake_group
from suites.collectives.programs import Model, export_module
from suites.shared.groups import Groups, leaves_slices, lists, slice_groups
from suites.shared.platforms import is_on_gpus
from suites.shared.values import REDUCTIONS, values

pytestmark = [pytest.mark.lanes("*-aot"), pytest.mark.upstream("pytorch/xla#3412")]

# The numeric token of torch_xla's collectives travels with the data, in a tile of its own.
TOKEN = 16 * 1024

OPERATIONS: dict[str, Callable[[torch.Tensor, Groups], torch.Tensor]] = {
    "all_reduce": lambda x, groups: xm.all_reduce("sum", x, groups=lists(groups)),
    "all_gather": lambda x, groups: xm.all_gather(x, 0, groups=lists(groups), pin_layout=False),
    "reduce_scatter": lambda x, groups: xm.reduce_scatter(
        "sum", x, 1.0, 0, len(groups[0]), groups=lists(groups), pin_layout=False
    ),
    "all_to_all": lambda x, groups: xm.all_to_all(
        x, 0, 1, len(groups[0]), groups=lists(groups), pin_layout=False
    ),
}


@pytest.fixture
def x(start_runtime: StartRuntime) -> torch.Tensor:
    """Return a tensor of the first replica; there are as many replicas as devices."""
    start_runtime(spmd=False)
    devices = xm.get_xla_supported_devices()
    xm.set_replication(torch.device(devices[0]), devices)
    return torch.ones(SHAPE).to(devices[0])


TWO_SLICES = ("2xv6e:2x2", "2xv5e:2x4", "2xv4:2x2x1", "2xh100:4")
each_operation = pytest.mark.parametrize("operation", OPERATIONS)


@pytest.mark.topologies(*TWO_SLICES, "v6e:2x4", "h100:8")
@pytest.mark.parametrize("groups", ["within", "mixed", "all"])
@each_operation
def test_groups(
    topology: Topology, x: torch.Tensor, xla_compiler: CaseCompiler, operation: str, groups: str
) -> None:
    check(xla_compiler, x, operation, slice_groups(groups, topology))


@pytest.mark.topologies(*TWO_SLICES)
@each_operation
def test_groups_across(
    topology: Topology, x: torch.Tensor, xla_compiler: CaseCompiler, operation: str
) -> None:
    check(xla_compiler, x, operation, slice_groups("across", topology))


def check(compiler: CaseCompiler, x: torch.Tensor, operation: str, groups: Groups) -> None:
    program = compiler.step(OPERATIONS[operation](x, groups)).program
    sent = must_send(operation, groups, compiler.topology)
    check_exchange(program, groups, compiler.topology, sent, TOKEN)


PERMUTATIONS: dict[str, Callable[[int, Topology], int]] = {
    "ring-of-a-slice": lambda i, t: i - i % t.devices + (i + 1) % t.devices,
    "ring-of-all": lambda i, t: (i + 1) % t.total,
    "next-slice": lambda i, t: (i + t.devices) % t.total,
    "reversed": lambda i, t: t.total - 1 - i,
}


@pytest.mark.topologies("2xv6e:2x2", "2xv5e:2x4", "v4:2x2x2", "2xh100:4", "h100:8")
@pytest.mark.parametrize("name", PERMUTATIONS)
def test_permute(
    topology: Topology, x: torch.Tensor, xla_compiler: CaseCompiler, name: str
) -> None:
    """A pair of one slice stays an HLO permutation, one of two slices goes over the hosts.

    On GPUs it is one exchange, between nodes if any pair is.
    """
    pairs = tuple((i, PERMUTATIONS[name](i, topology)) for i in range(topology.total))
    compiled = xla_compiler.step(xm.collective_permute(x, [list(pair) for pair in pairs]))
    inner = [pair for pair in pairs if not leaves_slices((pair,), topology)]
    place = [(a % topology.devices, b % topology.devices) for a, b in inner]
    crosses = leaves_slices(pairs, topology)
    left = [pair for c in compiled.program.collectives for pair in c.groups]
    if crosses and is_on_gpus():
        left, place = [*compiled.program.transfers[0].groups], [*pairs]
    moved = {pair for pair in place if pair[0] != pair[1]}
    assert {pair for pair in left if pair[0] != pair[1]} == moved
    assert compiled.program.bytes_across == BYTES * crosses


@pytest.mark.topologies("2xv6e:2x2", "v5p:2x2x1", "2xh100:4", "h100:4")
@pytest.mark.upstream("pytorch/xla#8854")
@pytest.mark.parametrize(("reducer", "dtype"), REDUCTIONS)
def test_exported_reduction(
    topology: Topology,
    start_runtime: StartRuntime,
    xla_compiler: CaseCompiler,
    reducer: str,
    dtype: str,
) -> None:
    """torch.export's program, of every reducer and dtype, is accepted and still reduces."""
    start_runtime(spmd=False)
    with fake_group(topology.total) as group:
        functional = torch.ops._c10d_functional
        module = export_module(
            Model(lambda v: functional.wait_tensor(functional.all_reduce(v, reducer, group))),
            [values(dtype, (16, 128), 0, reducer)],
        )
    program = xla_compiler.program(module.get_stablehlo_bytecode()).program
    if topology.slices == 1:
        assert program.kinds["all-reduce"] == 1
    elif is_on_gpus():
        assert program.kinds_across == {"ALL_REDUCE": 1}
    else:
        # MegaScale has no bitwise reduction: all is exchanged, and reduced on the chips.
        bitwise = reducer in ("and", "or") and dtype != "bool"
        kinds = {"ALL_TO_ALL", "ALL_GATHER"} if bitwise else {"ALL_REDUCE"}
        assert set(program.kinds_across) == kinds
