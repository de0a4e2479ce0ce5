"""What the ranks of a job submit on the virtual TPU, compiled by libtpu for the job's topology."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial

import torch

from harness.job.ranks import run_ranks
from harness.lanes.aot.case_compiler import CaseCompiler
from harness.lanes.aot.compiler import Compilation
from harness.lanes.aot.optimized import Optimized
from harness.lanes.virtual.submitted import Submitted, recording
from harness.model.topology import Target
from suites.shared.backends import BACKENDS

Step = Callable[[], object]
Prepare = Callable[[torch.device], Mapping[str, Step]]


def compile_steps(
    compiler: CaseCompiler, target: Target, prepare: Prepare, deadline: float = 100
) -> dict[str, list[Compilation]]:
    """Of each step, the programs that the first rank runs in it, compiled.

    Args:
        compiler: of the target's topology.
        target: says the framework; its topology has several processes.
        prepare: called on each rank with its device when it has joined; returns steps by name. What
            it starts by itself is no part of a step. What a step returns is computed in it.
        deadline: in seconds, for the job.

    Raises:
        AssertionError: ranks run other collectives than the first one, or in another order; or a
            step runs nothing.
        RankError: a rank raised.
        RefusedError: libtpu does not compile a program.
    """
    backend = BACKENDS[target.framework]

    def rank(_: int) -> dict[str, list[Submitted]]:
        with recording() as ran:
            steps = prepare(backend.join())
            backend.settle()
            programs = {name: ran(partial(_finish, step)) for name, step in steps.items()}
            backend.settle()
        return programs

    ranks = run_ranks(rank, target.topology, deadline=deadline)
    from harness.ir import parse  # not in every stack is jaxlib

    with_collectives = cache(lambda code: bool(parse(code).collectives))
    for name, programs in ranks[0].items():
        exchanges = {
            tuple(program.code for program in programs[name] if with_collectives(program.code))
            for programs in ranks
        }
        assert len(exchanges) == 1, f"{name}: ranks differ in what they exchange"
        assert programs, f"{name}: nothing ran"
    compiled = cache(compiler.submitted)
    return {
        name: [compiled(program) for program in programs] for name, programs in ranks[0].items()
    }


def _finish(step: Step) -> None:
    computed = step()
    torch.accelerator.synchronize()
    del computed


def as_one(programs: Sequence[Compilation]) -> Optimized:
    """Add up the facts of a step's programs."""
    facts = [compilation.program for compilation in programs]
    return Optimized(
        collectives=tuple(collective for part in facts for collective in part.collectives),
        transfers=tuple(transfer for part in facts for transfer in part.transfers),
        kernel_names=tuple(name for part in facts for name in part.kernel_names),
        vmem=max((part.vmem for part in facts), default=0),
        custom_calls=sum(part.custom_calls for part in facts),
    )
