"""A program of torch.distributed as every rank of a job runs it, on a framework and on gloo."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from harness.job.ranks import run_ranks
from harness.model.mismatch import NumbersError
from harness.model.topology import Target
from harness.oracles import gloo
from suites.shared.backends import BACKENDS
from suites.shared.groups import Groups
from suites.shared.tensors import to_numpy, to_torch


@dataclass(frozen=True)
class Rank:
    """One process of a job: its device, its subgroup, and the ranks that form the subgroup."""

    number: int
    device: torch.device
    group: dist.ProcessGroup | None
    members: tuple[int, ...]


Program = Callable[[torch.Tensor, Rank], torch.Tensor]
Arrays = Sequence[np.ndarray]  # one a rank
Answers = dict[str, list[np.ndarray]]  # of each question, rank by rank


@dataclass(frozen=True)
class Question:
    """A program, its input on each rank, and what each rank must get.

    ``over_gloo`` is for a program that gloo can't run as it is: another one with the same meaning,
    or None where gloo has nothing to say and NumPy is the only oracle.
    """

    program: Program
    inputs: Arrays
    expected: Arrays
    over_gloo: Program | None


def over_framework(
    questions: Mapping[str, Question],
    target: Target,
    groups: Groups = (),
    options: Mapping[str, Any] | None = None,
    deadline: float = 50,
) -> Answers:
    """Return each rank's results on the target's framework; ``options`` are for its groups.

    The questions of one call are executed together. Raises RankError if a rank raises, or has not
    answered after ``deadline`` seconds.
    """
    backend = BACKENDS[target.framework]

    def ask(number: int) -> dict[str, np.ndarray]:
        rank = _rank(number, backend.join(), groups, options)
        got = {name: _got(q.program, q.inputs, rank) for name, q in questions.items()}
        backend.settle()
        return {name: to_numpy(value) for name, value in got.items()}

    return by_question(run_ranks(ask, target.topology, deadline=deadline))


def over_gloo(questions: Mapping[str, Question], world: int, groups: Groups = ()) -> Answers:
    """Return each rank's results over gloo, for the questions that gloo can answer."""
    comparable = {name: (q.over_gloo, q.inputs) for name, q in questions.items() if q.over_gloo}

    def ask(number: int) -> dict[str, np.ndarray]:
        rank = _rank(number, torch.device("cpu"), groups)
        return {name: to_numpy(_got(*question, rank)) for name, question in comparable.items()}

    return by_question(gloo.run_ranks(ask, world)) if comparable else {}


def by_question(ranks: Sequence[Mapping[str, np.ndarray]]) -> Answers:
    """Answers of each rank as answers to each question."""
    return {name: [rank[name] for rank in ranks] for name in ranks[0]}


def check(answers: Arrays, expected: Arrays) -> None:
    """Every rank has what it must have: value, dtype and shape.

    Raises NumbersError, naming all ranks that have something else.
    """
    differ = {
        rank: _difference(got, want)
        for rank, (got, want) in enumerate(zip(answers, expected, strict=True))
    }
    if faults := [f"rank {rank}: {text}" for rank, text in differ.items() if text]:
        raise NumbersError("\n".join(faults))


def _rank(
    number: int, device: torch.device, groups: Groups, options: Mapping[str, Any] | None = None
) -> Rank:
    """Create the groups, which all ranks must do in the same order, and find one's own."""
    made = {ranks: dist.new_group(list(ranks), pg_options=options) for ranks in groups}
    for ranks, group in made.items():
        if number in ranks:
            return Rank(number, device, group, ranks)
    return Rank(number, device, None, tuple(range(dist.get_world_size())))


def _got(program: Program, inputs: Arrays, rank: Rank) -> torch.Tensor:
    return program(to_torch(inputs[rank.number].copy()).to(rank.device), rank)


def _difference(got: np.ndarray, want: np.ndarray) -> str:
    """Describe what is wrong with a rank's answer; return "" if nothing is."""
    if (got.dtype, got.shape) != (want.dtype, want.shape):
        return f"expected {want.dtype}{want.shape}, got {got.dtype}{got.shape}"
    if np.array_equal(got, want):
        return ""
    return f"expected {want.tolist()}, got {got.tolist()}"
