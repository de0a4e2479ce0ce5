"""Every collective of a job of ranks compiled by libtpu, with the options that ranks submit.

A process for each chip runs them on the virtual TPU; what its framework submits there, libtpu
compiles for topologies that are not there. Device assignments are the framework's own, so the
arithmetic over groups holds only where it puts each rank on its chip (pytorch/xla#3412).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import pytest
import torch
import torch.distributed as dist

from harness.lanes.aot.case_compiler import CaseCompiler
from harness.lanes.aot.compiler import Compilation
from harness.model.topology import Target
from suites.collectives.compiled import SHAPE, check_exchange, must_send
from suites.shared.compiling import Step, compile_steps
from suites.shared.groups import Groups, slice_groups
from suites.shared.tensors import to_torch
from suites.shared.values import REDUCERS, REDUCTIONS, executable, values

pytestmark = [
    pytest.mark.lanes("tpu-aot"),
    pytest.mark.frameworks("torch_tpu"),
    pytest.mark.upstream("pytorch/xla#3412"),
    pytest.mark.deadline(120),
]
TWO_SLICES = ("2xv6e:2x2", "2xv5e:2x2")


def collectives(x: torch.Tensor, group: dist.ProcessGroup | None, size: int) -> Mapping[str, Step]:
    """Each collective of ``x`` over a group of ``size`` ranks, into buffers that are there."""
    rows, columns = SHAPE
    total, gathered = torch.empty_like(x), x.new_empty(rows * size, columns)
    part = x.new_empty(rows // size, columns)
    return {
        "all_reduce": lambda: dist.all_reduce(x, group=group),
        "all_gather": lambda: dist.all_gather_into_tensor(gathered, x, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, x, group=group),
        "all_to_all": lambda: dist.all_to_all_single(total, x, group=group),
    }


def in_groups(groups: Groups) -> Callable[[torch.device], Mapping[str, Step]]:
    """Return a function that prepares the collectives over the group that a rank belongs to."""

    def prepare(device: torch.device) -> Mapping[str, Step]:
        made = {ranks: dist.new_group(list(ranks)) for ranks in groups}
        own = next(group for ranks, group in made.items() if dist.get_rank() in ranks)
        return collectives(torch.ones(SHAPE).to(device), own, len(groups[0]))

    return prepare


@pytest.mark.topologies(*TWO_SLICES, "v6e:2x4")
@pytest.mark.parametrize("groups", ["within", "mixed", "all"])
def test_groups(
    xla_target: Target, xla_compiler: CaseCompiler, subtests: pytest.Subtests, groups: str
) -> None:
    check(xla_target, xla_compiler, subtests, slice_groups(groups, xla_target.topology))


@pytest.mark.topologies(*TWO_SLICES)
def test_groups_across(
    xla_target: Target, xla_compiler: CaseCompiler, subtests: pytest.Subtests
) -> None:
    check(xla_target, xla_compiler, subtests, slice_groups("across", xla_target.topology))


def check(
    target: Target, compiler: CaseCompiler, subtests: pytest.Subtests, groups: Groups
) -> None:
    """Inside a slice only over its part of the groups; to others what must go."""
    for name, programs in compile_steps(compiler, target, in_groups(groups)).items():
        with subtests.test(name):
            sent = must_send(name, groups, target.topology)
            check_exchange(one(programs).program, groups, target.topology, sent)


def one(programs: list[Compilation]) -> Compilation:
    (program,) = programs
    return program


def reductions(
    pairs: Iterable[tuple[str, str]],
) -> Callable[[torch.device], Mapping[str, Step]]:
    """Return a function that prepares an all-reduce for each pair of reducer and dtype."""

    def prepare(device: torch.device) -> Mapping[str, Step]:
        return {f"{reducer}-{dtype}": step(device, reducer, dtype) for reducer, dtype in pairs}

    def step(device: torch.device, reducer: str, dtype: str) -> Step:
        x = to_torch(values(dtype, (16, 128), 0, reducer)).to(device)
        operation = getattr(dist.ReduceOp, REDUCERS[reducer].c10d)
        return lambda: dist.all_reduce(x, operation)

    return prepare


# The virtual TPU executes them as well, on XLA's CPU client.
EXECUTABLE = [pair for pair in REDUCTIONS if executable(*pair)]


@pytest.mark.topologies("2xv6e:2x2", "v5p:2x2x1")
@pytest.mark.upstream("pytorch/xla#8854")
def test_reduction(
    xla_target: Target, xla_compiler: CaseCompiler, subtests: pytest.Subtests
) -> None:
    """Every reducer of every dtype is accepted and still reduces."""
    pairs = [(reducer, dtype) for reducer, dtype in EXECUTABLE if dtype != "int64"]
    pairs.append(("sum", "int64"))
    for name, programs in compile_steps(xla_compiler, xla_target, reductions(pairs)).items():
        with subtests.test(name):
            check_reduction(one(programs))


@pytest.mark.topologies("v5p:2x2x1")
@pytest.mark.upstream("pytorch/xla#8854")
@pytest.mark.parametrize("reducer", ["mul", "min", "max"])
def test_reduction_of_int64(xla_target: Target, xla_compiler: CaseCompiler, reducer: str) -> None:
    step = reductions([(reducer, "int64")])
    for programs in compile_steps(xla_compiler, xla_target, step).values():
        check_reduction(one(programs))


def check_reduction(compilation: Compilation) -> None:
    if compilation.topology.slices == 1:
        assert compilation.program.kinds["all-reduce"] == 1
    else:
        assert set(compilation.program.kinds_across) == {"ALL_REDUCE"}
