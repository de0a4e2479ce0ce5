"""What the ranks of a job submit on the virtual TPU, compiled by libtpu for the job's topology."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial

import torch

from harness.job.ranks import run_ranks
from harness.lanes.aot.compiler import Compilation
from harness.lanes.aot.optimized import Optimized
from harness.lanes.aot.tpu_compiler import TpuCompiler
from harness.lanes.virtual.submitted import Submitted, recording
from harness.model.topology import Target
from suites.shared.backends import BACKENDS

Step = Callable[[], object]
Prepare = Callable[[torch.device], Mapping[str, Step]]


def compile_steps(
    compiler: TpuCompiler, target: Target, prepare: Prepare, deadline: float = 100
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
            found = {name: ran(partial(_finish, step)) for name, step in steps.items()}
            backend.settle()
        return found

    ranks = run_ranks(rank, target.topology, deadline=deadline)
    from harness.ir import parse  # not in every stack is jaxlib

    with_collectives = cache(lambda code: bool(parse(code).collectives))
    for name, programs in ranks[0].items():
        exchanges = {
            tuple(one.code for one in found[name] if with_collectives(one.code)) for found in ranks
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
        collectives=tuple(collective for one in facts for collective in one.collectives),
        transfers=tuple(transfer for one in facts for transfer in one.transfers),
        kernel_names=tuple(name for one in facts for name in one.kernel_names),
        vmem=max((one.vmem for one in facts), default=0),
        custom_calls=sum(one.custom_calls for one in facts),
    )
