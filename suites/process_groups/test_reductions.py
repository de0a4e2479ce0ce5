"""Every ReduceOp of torch.distributed and every dtype, in each collective that reduces."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
import torch.distributed as dist

from harness.isolation.ranks import RankError
from harness.model.topology import Target
from harness.oracles import collectives as oracle
from suites.process_groups.asking import ask
from suites.process_groups.jobs import Program, Question, Rank, over_framework
from suites.process_groups.programs import part_of_sum
from suites.shared.values import REDUCERS, REDUCTIONS, executable, ranks_of, rewritten

pytestmark = [
    pytest.mark.lanes("virtual-*"),
    pytest.mark.frameworks("torch_xla", "torch_tpu"),
    pytest.mark.topologies("4@chip"),
    pytest.mark.upstream("pytorch/xla#7782"),
]


def _all_reduce(op: dist.ReduceOp) -> Program:
    def program(x: torch.Tensor, _: Rank) -> torch.Tensor:
        dist.all_reduce(x, op)
        return x

    return program


def _reduce(op: dist.ReduceOp) -> Program:
    def program(x: torch.Tensor, rank: Rank) -> torch.Tensor:
        dist.reduce(x, 0, op)
        return x if rank.number == 0 else x.new_empty(0)

    return program


def _reduce_scatter(op: dist.ReduceOp) -> Program:
    def program(x: torch.Tensor, _: Rank) -> torch.Tensor:
        dist.reduce_scatter(y := torch.empty_like(x[:1]), list(x.split(1)), op)
        return y

    return program


def _reduce_scatter_tensor(op: dist.ReduceOp) -> Program:
    def program(x: torch.Tensor, _: Rank) -> torch.Tensor:
        dist.reduce_scatter_tensor(y := torch.empty_like(x[:1]), x, op)
        return y

    return program


def _reduced(inputs: list[np.ndarray], reducer: str) -> list[np.ndarray]:
    return oracle.all_reduce(inputs, reducer)


def _at_first(inputs: list[np.ndarray], reducer: str) -> list[np.ndarray]:
    first, *others = oracle.all_reduce(inputs, reducer)
    return [first, *(value[:0].reshape(-1) for value in others)]


def _scattered(inputs: list[np.ndarray], reducer: str) -> list[np.ndarray]:
    return oracle.reduce_scatter(inputs, reducer, 0)


Reducing = Callable[[dist.ReduceOp], Program]
Meaning = Callable[[list[np.ndarray], str], list[np.ndarray]]
REDUCING: dict[str, tuple[Reducing, Meaning]] = {
    "all_reduce": (_all_reduce, _reduced),
    "reduce": (_reduce, _at_first),
    "reduce_scatter": (_reduce_scatter, _scattered),
    "reduce_scatter_tensor": (_reduce_scatter_tensor, _scattered),
}


@pytest.mark.long
@pytest.mark.parametrize("collective", REDUCING)
def test_reduction(xla_target: Target, subtests: pytest.Subtests, collective: str) -> None:
    program, meaning = REDUCING[collective]
    questions = {}
    for reducer, dtype in REDUCTIONS:
        # torch_xla pins the layout in reduce, and XLA's CPU client then has no 16-bit all-reduce.
        if collective == "reduce" and "float16" in dtype:
            continue
        if not executable(reducer, dtype) and not rewritten():
            continue
        inputs = ranks_of(xla_target.topology.total, (4, 3), dtype, reducer)
        op = getattr(dist.ReduceOp, REDUCERS[reducer].c10d)
        reduction = program(op)
        of_gloo = partial(part_of_sum, op=op) if meaning is _scattered else reduction
        questions[f"{reducer}-{dtype}"] = Question(
            reduction, inputs, meaning(inputs, reducer), of_gloo
        )
    ask(subtests, xla_target, questions)


def test_average(xla_target: Target, subtests: pytest.Subtests) -> None:
    """The average, which gloo does not have."""
    inputs = ranks_of(xla_target.topology.total, (4, 3))
    mean = [np.asarray(np.mean(np.stack(inputs), 0, dtype=np.float32))] * xla_target.topology.total
    program = _all_reduce(dist.ReduceOp.AVG)
    ask(subtests, xla_target, {"float32": Question(program, inputs, mean, None)})


def test_exclusive_or(xla_target: Target, subtests: pytest.Subtests) -> None:
    if xla_target.framework == "torch_tpu" and not rewritten():
        pytest.skip("without JAX the virtual TPU has no such all-reduce")
    program = _all_reduce(dist.ReduceOp.BXOR)
    questions = {}
    for dtype in ("int32", "uint8", "bool"):
        inputs = ranks_of(xla_target.topology.total, (4, 3), dtype)
        odd = [np.bitwise_xor.reduce(np.stack(inputs))] * xla_target.topology.total
        # gloo has it of integers, and says that of booleans it has none.
        of_gloo = None if dtype == "bool" else program
        questions[dtype] = Question(program, inputs, odd, of_gloo)
    ask(subtests, xla_target, questions)


def test_scaled_sum_is_refused(xla_target: Target) -> None:
    """PREMUL_SUM is NCCL's own; a sum without the factor would be a wrong answer in silence."""
    inputs = ranks_of(xla_target.topology.total, (4, 3))
    program = _all_reduce(dist._make_nccl_premul_sum(2.0))
    with pytest.raises(RankError, match=r"Invalid reduce op|reduce option not supported"):
        over_framework({"float32": Question(program, inputs, inputs, None)}, xla_target)
