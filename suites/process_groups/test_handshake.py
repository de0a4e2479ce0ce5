"""TorchTPU's handshake of ranks, which compile a collective with what is around it if all agree.

Without it each collective is a program of its own. Ranks that do not agree must not deadlock.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from harness.job.ranks import run_ranks
from harness.messages.ports import free_port
from harness.model.topology import Target
from harness.oracles import collectives as oracle
from suites.process_groups.asking import ask
from suites.process_groups.jobs import Question, Rank
from suites.process_groups.programs import group_of
from suites.shared.backends import BACKENDS
from suites.shared.groups import layout
from suites.shared.values import ranks_of

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.frameworks("torch_tpu"),
    pytest.mark.topologies("4@chip"),
    pytest.mark.upstream("pytorch/xla#9315"),
    pytest.mark.long,
]
Step = Callable[[torch.Tensor], torch.Tensor]
STAGE, PORT = "TORCH_TPU_SPMD_HANDSHAKE_STAGE", "TORCH_TPU_INTERNAL_HANDSHAKE_PORT"
stages = pytest.mark.parametrize("stage", ["COMPILE_STAGE", "DISPATCH_STAGE"])


def _shake_hands(stage: str) -> None:
    os.environ.update({STAGE: stage, PORT: str(free_port())})


def _compiled(step: Step, reports: list[Any]) -> Step:
    options = {"debug_callback": reports.append, "serializable": False}
    compiled: Step = torch.compile(step, backend="tpu", fullgraph=True, options=options)
    return compiled


def _counted(step: Step, x: torch.Tensor) -> torch.Tensor:
    """Return the step's values, and behind them how many programs its graph became."""
    reports: list[Any] = []
    y = _compiled(step, reports)(x)
    (compiled,) = reports[0].compiled_executables
    count = torch.tensor([float(len(compiled.compiled_executables))], device=x.device)
    return torch.cat([y.flatten(), count])


def _doubled(rank: Rank) -> Step:
    return lambda x: functional.all_reduce(x * 2, "sum", group_of(rank)) + 1


def _tripled(rank: Rank) -> Step:
    return lambda x: functional.all_reduce(x + x + x, "sum", group_of(rank)) + 1


def _same(x: torch.Tensor, rank: Rank) -> torch.Tensor:
    return _counted(_doubled(rank), x)


def _unlike(x: torch.Tensor, rank: Rank) -> torch.Tensor:
    """On the last rank there is another program around the collective."""
    return _counted(_tripled(rank) if rank.number == 3 else _doubled(rank), x)


def _of_group(x: torch.Tensor, rank: Rank) -> torch.Tensor:
    """Ranks of a group do not shake hands."""
    return _counted(_doubled(rank), x)


def _none(x: torch.Tensor, _: Rank) -> torch.Tensor:
    return _counted(lambda x: x * 2 + 1, x)


@stages
def test_parts(xla_target: Target, subtests: pytest.Subtests, stage: str) -> None:
    """One program where all ranks agree, and three where they don't; the numbers are the same."""
    _shake_hands(stage)
    world, inputs = xla_target.topology.total, ranks_of(xla_target.topology.total, (4, 3))
    total = oracle.all_reduce(inputs, "sum")[0]
    weighted = oracle.all_reduce([x * (3 if n == 3 else 2) for n, x in enumerate(inputs)], "sum")[0]
    programs = {
        "same": (_same, [(2 * total + 1, 1)] * world),
        "unlike": (_unlike, [(weighted + 1, 3)] * world),
        "same-again": (_same, [(2 * total + 1, 1)] * world),
        "none": (_none, [(2 * x + 1, 1) for x in inputs]),
    }
    questions = {
        name: Question(
            program,
            inputs,
            [np.append(value, np.float32(parts)) for value, parts in expected],
            None,
        )
        for name, (program, expected) in programs.items()
    }
    ask(subtests, xla_target, questions)


@stages
def test_a_group_does_not_shake_hands(
    xla_target: Target, subtests: pytest.Subtests, stage: str
) -> None:
    _shake_hands(stage)
    groups = layout("pairs", xla_target.topology.total)
    inputs = ranks_of(xla_target.topology.total, (4, 3))
    sums = oracle.all_reduce(inputs, "sum", groups)
    expected = [np.append(2 * value + 1, np.float32(3)) for value in sums]
    ask(subtests, xla_target, {"pairs": Question(_of_group, inputs, expected, None)}, groups)


def _many(x: torch.Tensor, rank: Rank) -> torch.Tensor:
    """Several collectives, in turn."""
    group, size = group_of(rank), len(rank.members)

    def step(x: torch.Tensor) -> torch.Tensor:
        parts = functional.reduce_scatter_tensor(x * 2, "sum", 0, group)
        whole = functional.all_gather_tensor(parts + 1, 0, group)
        sizes = [len(x) // size] * size
        swapped = functional.all_to_all_single(whole + x, sizes, sizes, group)
        return functional.all_reduce(swapped * 3, "max", group) + 1

    return _counted(step, x)


@stages
def test_many_collectives(xla_target: Target, subtests: pytest.Subtests, stage: str) -> None:
    _shake_hands(stage)
    inputs = ranks_of(xla_target.topology.total, (4, 3))
    whole = 2 * oracle.all_reduce(inputs, "sum")[0] + 1
    swapped = oracle.all_to_all([whole + x for x in inputs], 0, 0)
    (largest, *_) = oracle.all_reduce(swapped, "max")
    expected = [np.append(3 * largest + 1, np.float32(1))] * len(inputs)
    ask(subtests, xla_target, {"float32": Question(_many, inputs, expected, None)})


def _in_other_graphs(x: torch.Tensor, rank: Rank) -> torch.Tensor:
    """One rank has in one graph what the others have in two; after that, all have the same."""
    reports: list[Any] = []
    once, twice = _doubled(rank), _tripled(rank)
    if rank.number == 2:
        y = _compiled(lambda x: torch.cat([once(x), twice(x)]), reports)(x)
    else:
        y = torch.cat([_compiled(once, reports)(x), _compiled(twice, reports)(x)])
    return torch.cat([y.flatten(), _counted(_doubled(rank), x[:1])])


@stages
def test_other_graphs(xla_target: Target, subtests: pytest.Subtests, stage: str) -> None:
    _shake_hands(stage)
    inputs = ranks_of(xla_target.topology.total, (4, 3))
    total = oracle.all_reduce(inputs, "sum")[0]
    values = [2 * total + 1, 3 * total + 1, 2 * total[:1] + 1, np.ones(1, np.float32)]
    expected = [np.concatenate([value.reshape(-1) for value in values])] * len(inputs)
    ask(subtests, xla_target, {"float32": Question(_in_other_graphs, inputs, expected, None)})


def test_close(xla_target: Target) -> None:
    """Closing the handshake stops its threads on each rank, without a warning and at once.

    The ranks find the coordinator by an address of IPv6.
    """
    _shake_hands("COMPILE_STAGE")
    inputs, backend = ranks_of(xla_target.topology.total, (4, 3)), BACKENDS[xla_target.framework]

    def close(number: int) -> tuple[np.ndarray, list[bool], list[str]]:
        from torch_tpu._internal.distributed.handshake import Handshake

        device = backend.join()
        os.environ["MASTER_ADDR"] = "::ffff:127.0.0.1"  # from now on only the handshake reads it
        y = _counted(
            _doubled(Rank(number, device, None, ())), torch.tensor(inputs[number]).to(device)
        )
        values = y.cpu().numpy()
        backend.settle()
        states, warnings = [_is_shaking_hands()], _Warnings()
        logging.getLogger("absl").addHandler(warnings)
        Handshake().close()
        Handshake().close()  # which does nothing
        return values, [*states, _is_shaking_hands()], warnings.messages

    total = oracle.all_reduce(inputs, "sum")[0]
    for values, states, warnings in run_ranks(close, xla_target.topology):
        np.testing.assert_array_equal(values, np.append(2 * total + 1, np.float32(1)))
        assert (states, warnings) == ([True, False], [])


def test_a_rank_that_does_not_come(xla_target: Target) -> None:
    """The others fail after the timeout, whether they wait at the coordinator or are it."""
    _shake_hands("COMPILE_STAGE")
    os.environ["TORCH_TPU_INTERNAL_HANDSHAKE_TIMEOUT_S"] = "2"
    *waiting, absent = _errors(xla_target, lambda number: number != 3)
    assert absent[0] == ""
    assert all(error and seconds >= 2 for error, seconds in waiting), waiting


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (PORT, "taken", "is not available for usage"),
        (PORT, "70000", "port number 70000 is not a valid 16 bit"),
        ("TORCH_TPU_INTERNAL_HANDSHAKE_TIMEOUT_S", "-1", "must be non-negative, got -1"),
    ],
    ids=["taken-port", "no-port", "timeout"],
)
def test_wrong_settings(xla_target: Target, name: str, value: str, message: str) -> None:
    _shake_hands("COMPILE_STAGE")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        os.environ[name] = str(other.getsockname()[1]) if value == "taken" else value
        error, _ = _errors(xla_target, lambda number: number == 0)[0]
    assert message in error


class _Warnings(logging.Handler):
    """Handler that keeps what is logged as a warning or as an error."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def _is_shaking_hands() -> bool:
    """Return whether this process has threads for the handshake, in Python or in ZeroMQ."""
    threads = [task.read_text() for task in Path("/proc/self/task").glob("*/comm")]
    threads += [thread.name for thread in threading.enumerate()]
    return any(name.startswith(("ZMQ", "Handshake")) for name in threads)


def _errors(target: Target, comes: Callable[[int], bool]) -> list[tuple[str, float]]:
    """Return what the compilation raises on each rank that comes to it, or "", and its seconds."""
    inputs, backend = ranks_of(target.topology.total, (4, 3)), BACKENDS[target.framework]

    def compile_there(number: int) -> tuple[str, float]:
        device = backend.join()
        x = torch.tensor(inputs[number], device=device)
        x.cpu()
        error, start = "", time.monotonic()
        if comes(number):
            try:
                _compiled(_doubled(Rank(number, device, None, ())), [])(x)
            except Exception as raised:  # the compiler wraps it
                error = f"{type(raised).__name__}: {raised}"
        seconds = time.monotonic() - start
        dist.barrier()
        return error, seconds

    return run_ranks(compile_there, target.topology)
