"""Sending and receiving between ranks."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
import torch.distributed as dist

from harness.model.topology import Target
from suites.process_groups.asking import ask
from suites.process_groups.jobs import Program, Question, Rank, check, over_framework, over_gloo
from suites.shared.values import ranks_of

pytestmark = [
    pytest.mark.lanes("virtual-*"),
    pytest.mark.frameworks("torch_xla", "torch_tpu"),
    pytest.mark.upstream("pytorch/xla#8074"),
]


def _sends(x: torch.Tensor, rank: Rank) -> torch.Tensor:
    if rank.number == 0:
        dist.send(x, 1)
    else:
        dist.recv(x, 0)
    return x


def _starts_to_send(x: torch.Tensor, rank: Rank) -> torch.Tensor:
    work = dist.isend(x, 1) if rank.number == 0 else dist.irecv(x, 0)
    assert work is not None
    work.wait()
    return x


def _in_a_ring(x: torch.Tensor, rank: Rank) -> torch.Tensor:
    """Each rank sends to the next one and receives from the one before, in one batch."""
    world = len(rank.members)
    y = torch.zeros_like(x)
    operations = [
        dist.P2POp(dist.isend, x, (rank.number + 1) % world),
        dist.P2POp(dist.irecv, y, (rank.number - 1) % world),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return y


def _by_turns(x: torch.Tensor, rank: Rank) -> torch.Tensor:
    """Even ranks send to the next one, then receive; odd ones receive, then send."""
    after = (rank.number + 1) % len(rank.members)
    before = (rank.number - 1) % len(rank.members)
    y = torch.zeros_like(x)
    if rank.number % 2 == 0:
        dist.send(x, after)
        dist.recv(y, before)
    else:
        dist.recv(y, before)
        dist.send(x, after)
    return y


def _to_the_second_half(x: torch.Tensor, rank: Rank) -> torch.Tensor:
    """Two pairs of ranks at once, neither of which knows of the other."""
    half = len(rank.members) // 2
    if rank.number < half:
        dist.send(x, rank.number + half)
    else:
        dist.recv(x, rank.number - half)
    return x


def _repeatedly(x: torch.Tensor, rank: Rank) -> torch.Tensor:
    """Row by row with one tag, to a receiver that comes late, so that the sender is there first."""
    rows = [torch.zeros_like(x[0]) for _ in x]
    for place, row in enumerate(x):
        if rank.number == 0:
            dist.send(row * (place + 1), 1, tag=7)
        else:
            time.sleep(0.1)
            dist.recv(rows[place], 0, tag=7)
    return x if rank.number == 0 else torch.stack(rows)


@pytest.mark.parametrize("program", [_sends, _starts_to_send], ids=["send", "isend"])
@pytest.mark.topologies("2@chip")
def test_pair(xla_target: Target, subtests: pytest.Subtests, program: Program) -> None:
    """Rank 0 sends to rank 1, and there are no others."""
    inputs = ranks_of(xla_target.topology.total, (4, 3))
    ask(subtests, xla_target, {"float32": Question(program, inputs, [inputs[0]] * 2, program)})


@pytest.mark.long
@pytest.mark.topologies("2@chip")
def test_order(xla_target: Target, subtests: pytest.Subtests) -> None:
    """What is sent with one tag arrives in the order in which it was sent."""
    inputs = ranks_of(xla_target.topology.total, (8, 3))
    sent = inputs[0] * np.arange(1, 9, dtype=np.float32)[:, None]
    questions = {"float32": Question(_repeatedly, inputs, [inputs[0], sent], _repeatedly)}
    ask(subtests, xla_target, questions)


@pytest.mark.topologies("4@chip")
def test_pairs_at_once(xla_target: Target, subtests: pytest.Subtests) -> None:
    inputs = ranks_of(xla_target.topology.total, (4, 3))
    expected = [*inputs[:2], *inputs[:2]]
    questions = {"float32": Question(_to_the_second_half, inputs, expected, _to_the_second_half)}
    ask(subtests, xla_target, questions)


@pytest.mark.topologies("4@chip")
def test_ring_by_turns(xla_target: Target, subtests: pytest.Subtests) -> None:
    inputs = ranks_of(xla_target.topology.total, (4, 3))
    shifted = [inputs[-1], *inputs[:-1]]
    ask(subtests, xla_target, {"float32": Question(_by_turns, inputs, shifted, _by_turns)})


@pytest.mark.long
@pytest.mark.topologies("4@chip")
def test_ring(xla_target: Target) -> None:
    """Ranks that wait for each other get no more time than they need."""
    inputs = ranks_of(xla_target.topology.total, (4, 3))
    shifted = [inputs[-1], *inputs[:-1]]
    questions = {"float32": Question(_in_a_ring, inputs, shifted, _in_a_ring)}
    check(over_gloo(questions, xla_target.topology.total)["float32"], shifted)
    check(over_framework(questions, xla_target, deadline=20)["float32"], shifted)
