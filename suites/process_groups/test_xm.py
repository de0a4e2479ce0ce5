"""The collectives of torch_xla.core.xla_model between processes, with and without pinned layouts.

What each of them means for every shape, group and dtype is asked in suites/collectives, where one
process traces all ranks; here each rank's own process traces, compiles and executes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch_xla
from torch_xla.core import xla_model as xm

from harness.job.ranks import run_ranks
from harness.model.topology import Target, Topology
from harness.oracles import collectives as oracle
from suites.process_groups.asking import ask
from suites.process_groups.jobs import Program, Question, Rank, check
from suites.process_groups.programs import COLLECTIVES, root
from suites.shared.backends import join_replicas
from suites.shared.groups import Groups, layout, lists
from suites.shared.tensors import to_numpy, to_torch
from suites.shared.values import ranks_of

pytestmark = [pytest.mark.lanes("virtual-tpu"), pytest.mark.upstream("pytorch/xla#3824")]

Make = Callable[[Groups, bool], Program]


def _all_reduce(groups: Groups, pin: bool) -> Program:
    return lambda x, rank: xm.all_reduce("sum", x, groups=lists(groups), pin_layout=pin)


def _all_reduce_in_place(groups: Groups, pin: bool) -> Program:
    return lambda x, rank: xm.all_reduce("sum", [x], groups=lists(groups), pin_layout=pin)[0]


def _all_gather(groups: Groups, pin: bool) -> Program:
    return lambda x, rank: xm.all_gather(x, 0, lists(groups), pin_layout=pin)


def _reduce_scatter(groups: Groups, pin: bool) -> Program:
    return lambda x, rank: xm.reduce_scatter(
        "sum", x, 1.0, 0, len(rank.members), lists(groups), pin_layout=pin
    )


def _all_to_all(groups: Groups, pin: bool) -> Program:
    return lambda x, rank: xm.all_to_all(x, 0, 0, len(rank.members), lists(groups), pin_layout=pin)


def _broadcast(groups: Groups, pin: bool) -> Program:
    def program(x: torch.Tensor, rank: Rank) -> torch.Tensor:
        xm.collective_broadcast([x], root(rank), lists(groups), pin_layout=pin)
        return x

    return program


# Each with the collective of torch.distributed that means the same, for NumPy and gloo.
FUNCTIONS: dict[str, tuple[Make, str]] = {
    "all_reduce": (_all_reduce, "all_reduce"),
    "all_reduce_in_place": (_all_reduce_in_place, "all_reduce"),
    "all_gather": (_all_gather, "all_gather"),
    "reduce_scatter": (_reduce_scatter, "reduce_scatter_tensor"),
    "all_to_all": (_all_to_all, "all_to_all_single"),
    "collective_broadcast": (_broadcast, "broadcast"),
}


@pytest.mark.topologies("4@chip")
@pytest.mark.parametrize("groups", ["default", "strided"])
@pytest.mark.parametrize("pin_layout", [True, False], ids=["pinned", "free"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_function(
    xla_target: Target, subtests: pytest.Subtests, function: str, pin_layout: bool, groups: str
) -> None:
    of = layout(groups, xla_target.topology.total)
    make, same = FUNCTIONS[function]
    collective = COLLECTIVES[same]
    questions = {}
    for dtype in ("float32", "int32"):
        inputs = ranks_of(xla_target.topology.total, (8, 3), dtype)
        expected = collective.meaning(inputs, of)
        questions[dtype] = Question(make(of, pin_layout), inputs, expected, collective.over_gloo)
    ask(subtests, xla_target, questions, of)


@pytest.mark.topologies("4@chip", "2x2@chip")
@pytest.mark.parametrize(
    "pairs", [((0, 1), (1, 2), (2, 3), (3, 0)), ((2, 0),)], ids=["ring", "one"]
)
def test_collective_permute(
    xla_target: Target, subtests: pytest.Subtests, pairs: tuple[tuple[int, int], ...]
) -> None:
    """Ranks that nobody sends to get zeros. gloo has no such collective."""
    inputs = ranks_of(xla_target.topology.total, (4, 3))
    expected = oracle.collective_permute(inputs, pairs)

    def program(x: torch.Tensor, _: Rank) -> torch.Tensor:
        return xm.collective_permute(x, [list(pair) for pair in pairs])

    ask(subtests, xla_target, {"float32": Question(program, inputs, expected, None)})


@pytest.mark.topologies("8@host")
def test_threads_of_hosts(topology: Topology) -> None:
    """A process of each host with a thread for each of its chips, which is another rank."""
    inputs = ranks_of(topology.total, (8, 3))

    def of_host(number: int) -> list[np.ndarray]:
        join_replicas()
        devices = xm.get_xla_supported_devices()
        chips = topology.total // topology.process_count

        def of_chip(chip: int) -> np.ndarray:
            torch_xla._XLAC._xla_set_default_device(devices[chip])
            value = to_torch(inputs[number * chips + chip]).to(devices[chip])
            return to_numpy(xm.reduce_scatter("sum", value, 1.0, 0, topology.total))

        with ThreadPoolExecutor(chips) as threads:
            return list(threads.map(of_chip, range(chips)))

    got = [value for host in run_ranks(of_host, topology) for value in host]
    check(got, oracle.reduce_scatter(inputs, "sum", 0))


def _rendezvous(number: int) -> tuple[float, float, list[bytes]]:
    join_replicas()
    xm.rendezvous("ready")  # so that all come about the same time, but for the sleep
    if number == 2:
        time.sleep(0.5)
    came = time.monotonic()
    payloads: list[bytes] = xm.rendezvous("here", bytes([number, 7]))
    return came, time.monotonic(), payloads


@pytest.mark.topologies("4@chip")
@pytest.mark.upstream("pytorch/xla#1654")
def test_rendezvous(topology: Topology) -> None:
    """No rank leaves before the last one has come, with what each of them said."""
    ranks = run_ranks(_rendezvous, topology)
    last = max(came for came, _, _ in ranks)
    early = [rank for rank, (_, left, _) in enumerate(ranks) if left < last]
    assert not early, f"ranks {early} left before the last rank came"
    expected = [bytes([rank, 7]) for rank in range(topology.total)]
    assert [payloads for _, _, payloads in ranks] == [expected] * topology.total


@pytest.mark.topologies("4@chip")
@pytest.mark.upstream("pytorch/xla#1654")
def test_payloads(topology: Topology) -> None:
    """Each rank's bytes, of any length and none, reach all ranks."""

    def ask(number: int) -> list[bytes]:
        join_replicas()
        received: list[bytes] = xm.rendezvous("payload", bytes(range(number)))
        return received

    sent = [bytes(range(rank)) for rank in range(topology.total)]
    assert run_ranks(ask, topology) == [sent] * topology.total
