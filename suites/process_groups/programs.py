"""The collectives of torch.distributed as programs for any backend, and what each means in NumPy.

Each takes a tensor whose first dimension the group's size divides, and returns what the rank
receives: an empty tensor where it receives nothing. The root is the group's second rank, so that a
root counted within the group is another rank than one counted in the job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

from harness.oracles import collectives as oracle
from suites.process_groups.jobs import Program, Question, Rank
from suites.shared.groups import Groups

Meaning = Callable[[Sequence[np.ndarray], Groups], list[np.ndarray]]


@dataclass(frozen=True)
class Collective:
    """A program, its meaning, and what gloo runs for it (see Question)."""

    program: Program
    meaning: Meaning
    over_gloo: Program | None


def root(rank: Rank) -> int:
    """Return the group's root as torch.distributed takes it: by its rank in the job."""
    return rank.members[1]


def group_of(rank: Rank) -> dist.ProcessGroup:
    """Return the rank's group, or that of all ranks: functional collectives take no None."""
    group = rank.group or dist.group.WORLD
    assert group is not None
    return group


def _all_reduce(x: torch.Tensor, rank: Rank) -> torch.Tensor:
    dist.all_reduce(x, group=rank.group)
    return x


def _all_reduce_async(x: torch.Tensor, rank: Rank) -> torch.Tensor:
    work = dist.all_reduce(x, group=rank.group, async_op=True)
    assert work is not None
    work.wait()
    return x


def _all_gather(x: torch.Tensor, rank: Rank) -> torch.Tensor:
    parts = [torch.empty_like(x) for _ in rank.members]
    dist.all_gather(parts, x, group=rank.group)
    return torch.cat(parts)


def _all_gather_scalar(x: torch.Tensor, rank: Rank) -> torch.Tensor:
    parts = [torch.empty_like(x[0, 0]) for _ in rank.members]
    dist.all_gather(parts, x[0, 0], group=rank.group)
    return torch.stack(parts)


def _all_gather_into_tensor(x: torch.Tensor, rank: Rank) -> torch.Tensor:
    y = x.new_empty((len(rank.members) * len(x), *x.shape[1:]))
    dist.all_gather_into_tensor(y, x, group=rank.group)
    return y


def _all_gather_stacked(x: torch.Tensor, rank: Rank) -> torch.Tensor:
    y = x.new_empty((len(rank.members), *x.shape))
    dist.all_gather_into_tensor(y, x, group=rank.group)
    return y.flatten(0, 1)


def _reduce_scatter(x: torch.Tensor, rank: Rank) -> torch.Tensor:
    parts = [part.contiguous() for part in x.chunk(len(rank.members))]
    y = torch.empty_like(parts[0])
    dist.reduce_scatter(y, parts, group=rank.group)
    return y


def _reduce_scatter_tensor(x: torch.Tensor, rank: Rank) -> torch.Tensor:
    y = x.new_empty((len(x) // len(rank.members), *x.shape[1:]))
    dist.reduce_scatter_tensor(y, x, group=rank.group)
    return y


def part_of_sum(
    x: torch.Tensor, rank: Rank, op: dist.ReduceOp | dist.ReduceOp.RedOpType = dist.ReduceOp.SUM
) -> torch.Tensor:
    """Compute a reduce_scatter for gloo, which lacks it for lists before torch 2.8, and then sums.

    gloo then sums whatever the reduction is. ``x`` is overwritten.
    """
    dist.all_reduce(x, op, group=rank.group)
    return x.chunk(len(rank.members))[rank.members.index(rank.number)]


def _all_to_all(x: torch.Tensor, rank: Rank) -> torch.Tensor:
    parts = [part.contiguous() for part in x.chunk(len(rank.members))]
    received = [torch.empty_like(part) for part in parts]
    dist.all_to_all(received, parts, group=rank.group)
    return torch.cat(received)


def _all_to_all_single(x: torch.Tensor, rank: Rank) -> torch.Tensor:
    dist.all_to_all_single(y := torch.empty_like(x), x, group=rank.group)
    return y


def _broadcast(x: torch.Tensor, rank: Rank) -> torch.Tensor:
    dist.broadcast(x, root(rank), group=rank.group)
    return x


def _reduce(x: torch.Tensor, rank: Rank) -> torch.Tensor:
    dist.reduce(x, root(rank), group=rank.group)
    return x if rank.number == root(rank) else x.new_empty(0)


def _gather(x: torch.Tensor, rank: Rank) -> torch.Tensor:
    if rank.number != root(rank):
        dist.gather(x, None, root(rank), group=rank.group)
        return x.new_empty(0)
    parts = [torch.empty_like(x) for _ in rank.members]
    dist.gather(x, parts, root(rank), group=rank.group)
    return torch.cat(parts)


def _scatter(x: torch.Tensor, rank: Rank) -> torch.Tensor:
    parts = [part.contiguous() for part in x.chunk(len(rank.members))]
    y = torch.empty_like(parts[0])
    dist.scatter(y, parts if rank.number == root(rank) else None, root(rank), group=rank.group)
    return y


def _at_root(everywhere: Meaning) -> Meaning:
    def meaning(inputs: Sequence[np.ndarray], groups: Groups) -> list[np.ndarray]:
        roots = {group[1] for group in oracle.partition(groups, len(inputs))}
        values = everywhere(inputs, groups)
        return [v if rank in roots else v[:0].reshape(-1) for rank, v in enumerate(values)]

    return meaning


def _from_root(inputs: Sequence[np.ndarray], groups: Groups) -> list[np.ndarray]:
    received = list(inputs)
    for group in oracle.partition(groups, len(inputs)):
        for rank in group:
            received[rank] = inputs[group[1]]
    return received


def _scattered(inputs: Sequence[np.ndarray], groups: Groups) -> list[np.ndarray]:
    received = list(inputs)
    for group in oracle.partition(groups, len(inputs)):
        parts = np.split(inputs[group[1]], len(group))
        for rank, part in zip(group, parts, strict=True):
            received[rank] = part
    return received


def _sum(inputs: Sequence[np.ndarray], groups: Groups) -> list[np.ndarray]:
    return oracle.all_reduce(inputs, "sum", groups)


def _gathered(inputs: Sequence[np.ndarray], groups: Groups) -> list[np.ndarray]:
    return oracle.all_gather(inputs, 0, groups)


def _gathered_scalars(inputs: Sequence[np.ndarray], groups: Groups) -> list[np.ndarray]:
    return oracle.all_gather([value[0, :1] for value in inputs], 0, groups)


def _sum_scattered(inputs: Sequence[np.ndarray], groups: Groups) -> list[np.ndarray]:
    return oracle.reduce_scatter(inputs, "sum", 0, groups)


def _exchanged(inputs: Sequence[np.ndarray], groups: Groups) -> list[np.ndarray]:
    return oracle.all_to_all(inputs, 0, 0, groups)


def _as_it_is(program: Program, meaning: Meaning) -> Collective:
    return Collective(program, meaning, program)


COLLECTIVES = {
    "all_reduce": _as_it_is(_all_reduce, _sum),
    "all_reduce_async": _as_it_is(_all_reduce_async, _sum),
    "all_gather": _as_it_is(_all_gather, _gathered),
    "all_gather_scalar": _as_it_is(_all_gather_scalar, _gathered_scalars),
    "all_gather_into_tensor": _as_it_is(_all_gather_into_tensor, _gathered),
    # over gloo the output can't be stacked, only concatenated
    "all_gather_stacked": Collective(_all_gather_stacked, _gathered, _all_gather_into_tensor),
    "reduce_scatter": Collective(_reduce_scatter, _sum_scattered, part_of_sum),
    "reduce_scatter_tensor": Collective(_reduce_scatter_tensor, _sum_scattered, part_of_sum),
    # gloo has no all_to_all of a list
    "all_to_all": Collective(_all_to_all, _exchanged, _all_to_all_single),
    "all_to_all_single": _as_it_is(_all_to_all_single, _exchanged),
    "broadcast": _as_it_is(_broadcast, _from_root),
    "reduce": _as_it_is(_reduce, _at_root(_sum)),
    "gather": _as_it_is(_gather, _at_root(_gathered)),
    "scatter": _as_it_is(_scatter, _scattered),
}


def question(name: str, inputs: Sequence[np.ndarray], groups: Groups = ()) -> Question:
    """Return the question of what this collective makes of the ranks' inputs in each group."""
    collective = COLLECTIVES[name]
    return Question(
        collective.program, inputs, collective.meaning(inputs, groups), collective.over_gloo
    )
