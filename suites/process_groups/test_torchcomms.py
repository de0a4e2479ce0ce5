"""TorchTPU's communicator for torchcomms, whose calls go around torch.distributed's functions.

The package torchcomms itself is not needed: the class that it would register is torch_tpu's own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from harness.isolation.ranks import fork_ranks
from harness.job.ranks import run_ranks
from harness.model.topology import Target
from harness.oracles import collectives as oracle
from suites.process_groups.asking import ask
from suites.process_groups.jobs import Program, Question, Rank, check
from suites.process_groups.programs import question
from suites.shared.backends import BACKENDS
from suites.shared.groups import layout
from suites.shared.values import REDUCERS, ranks_of

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.frameworks("torch_tpu"),
    pytest.mark.topologies("4@chip"),
    pytest.mark.upstream("pytorch/xla#9315"),
]
Calls = Callable[[Any, torch.Tensor, Rank], torch.Tensor]  # a communicator's


def _over(calls: Calls) -> Program:
    """Run the calls on the communicator of all ranks, or on that of the rank's group."""

    def program(x: torch.Tensor, rank: Rank) -> torch.Tensor:
        from torch_tpu._internal.distributed.torchcomm_tpu import create_torchcomms_tpu

        comm = create_torchcomms_tpu("tpu", device=x.device, name="all")
        if rank.group is not None:
            comm = comm.split(list(rank.members), f"group of {rank.members[0]}")
            assert (comm.rank, comm.size) == (rank.members.index(rank.number), len(rank.members))
        return calls(comm, x, rank)

    return program


def _all_reduce(comm: Any, x: torch.Tensor, _: Rank) -> torch.Tensor:
    comm.all_reduce(x)
    return x


def _all_gather(comm: Any, x: torch.Tensor, rank: Rank) -> torch.Tensor:
    parts = [torch.empty_like(x) for _ in rank.members]
    comm.all_gather(parts, x)
    return torch.cat(parts)


def _all_gather_single(comm: Any, x: torch.Tensor, rank: Rank) -> torch.Tensor:
    y = x.new_empty((len(rank.members) * len(x), *x.shape[1:]))
    comm.all_gather_single(y, x)
    return y


def _reduce_scatter(comm: Any, x: torch.Tensor, rank: Rank) -> torch.Tensor:
    parts = [part.contiguous() for part in x.chunk(len(rank.members))]
    y = torch.empty_like(parts[0])
    comm.reduce_scatter(y, parts)
    return y


def _reduce_scatter_single(comm: Any, x: torch.Tensor, rank: Rank) -> torch.Tensor:
    y = x.new_empty((len(x) // len(rank.members), *x.shape[1:]))
    comm.reduce_scatter_single(y, x)
    return y


def _all_to_all(comm: Any, x: torch.Tensor, rank: Rank) -> torch.Tensor:
    parts = [part.contiguous() for part in x.chunk(len(rank.members))]
    received = [torch.empty_like(part) for part in parts]
    comm.all_to_all(received, parts)
    return torch.cat(received)


def _all_to_all_single(comm: Any, x: torch.Tensor, _: Rank) -> torch.Tensor:
    comm.all_to_all_single(y := torch.empty_like(x), x)
    return y


def _all_to_all_v_single(comm: Any, x: torch.Tensor, rank: Rank) -> torch.Tensor:
    sizes = [len(x) // len(rank.members)] * len(rank.members)
    comm.all_to_all_v_single(y := torch.empty_like(x), x, sizes, sizes)
    return y


def _broadcast(comm: Any, x: torch.Tensor, _: Rank) -> torch.Tensor:
    comm.broadcast(x, root=1)  # counted among the communicator's
    return x


def _all_reduce_async(comm: Any, x: torch.Tensor, _: Rank) -> torch.Tensor:
    comm.all_reduce(x, op=dist.ReduceOp.SUM, async_op=True).wait()
    return x


def _all_gather_v(comm: Any, x: torch.Tensor, rank: Rank) -> torch.Tensor:
    parts = [torch.empty_like(x) for _ in rank.members]
    comm.all_gather_v(parts, x)
    return torch.cat(parts)


def _all_gather_into_tensor(comm: Any, x: torch.Tensor, rank: Rank) -> torch.Tensor:
    y = x.new_empty((len(rank.members) * len(x), *x.shape[1:]))
    comm.all_gather_into_tensor(y, x, async_op=True).wait()
    return y


def _reduce_scatter_v(comm: Any, x: torch.Tensor, rank: Rank) -> torch.Tensor:
    parts = [part.contiguous() for part in x.chunk(len(rank.members))]
    y = torch.empty_like(parts[0])
    comm.reduce_scatter_v(y, parts)
    return y


def _reduce_scatter_tensor(comm: Any, x: torch.Tensor, rank: Rank) -> torch.Tensor:
    y = x.new_empty((len(x) // len(rank.members), *x.shape[1:]))
    comm.reduce_scatter_tensor(y, x)
    return y


def _all_to_all_splits(comm: Any, x: torch.Tensor, rank: Rank) -> torch.Tensor:
    """Name the sizes as torchcomms does."""
    sizes = [len(x) // len(rank.members)] * len(rank.members)
    y = torch.empty_like(x)
    comm.all_to_all_v_single(y, x, output_splits=sizes, input_splits=sizes)
    return y


def _broadcast_from_source(comm: Any, x: torch.Tensor, _: Rank) -> torch.Tensor:
    comm.broadcast(x, src=1)
    return x


def _between_barriers(comm: Any, x: torch.Tensor, _: Rank) -> torch.Tensor:
    comm.barrier()
    comm.all_reduce(x)
    comm.barrier()
    return x


# The communicator's method, and the collective of torch.distributed that means the same.
METHODS: dict[str, tuple[Calls, str]] = {
    "all_reduce": (_all_reduce, "all_reduce"),
    "all_gather": (_all_gather, "all_gather"),
    "all_gather_single": (_all_gather_single, "all_gather_into_tensor"),
    "reduce_scatter": (_reduce_scatter, "reduce_scatter"),
    "reduce_scatter_single": (_reduce_scatter_single, "reduce_scatter_tensor"),
    "all_to_all": (_all_to_all, "all_to_all"),
    "all_to_all_single": (_all_to_all_single, "all_to_all_single"),
    "all_to_all_v_single": (_all_to_all_v_single, "all_to_all_single"),
    "broadcast": (_broadcast, "broadcast"),
    "all_reduce-async": (_all_reduce_async, "all_reduce"),
    "all_gather_v": (_all_gather_v, "all_gather"),
    "all_gather_into_tensor": (_all_gather_into_tensor, "all_gather_into_tensor"),
    "reduce_scatter_v": (_reduce_scatter_v, "reduce_scatter"),
    "reduce_scatter_tensor": (_reduce_scatter_tensor, "reduce_scatter_tensor"),
    "all_to_all_v_single-splits": (_all_to_all_splits, "all_to_all_single"),
    "broadcast-source": (_broadcast_from_source, "broadcast"),
    "barrier": (_between_barriers, "all_reduce"),
}
UNSUPPORTED = {
    "create_pair_comm": (1,),
    "split_group": ([0, 1],),
    "reconfigure": (),
    "create_window": (None,),
    "map_remote_tensor": (None, 1),
    "create_batch": (),
    "all_reduce_coalesced": ([],),
    "all_gather_coalesced": ([], []),
    "reduce_scatter_coalesced": ([], []),
    "all_to_all_coalesced": ([], []),
    "reduce": (None,),
    "gather": (),
    "scatter": (None,),
    "monitored_barrier": (),
    "register_flight_recorder_hook": (None,),
    "get_flight_recorder_traces": (),
    "broadcast_object_list": ([],),
    "all_gather_object": ([], 1),
    "gather_object": (1,),
    "scatter_object_list": ([],),
}


@pytest.mark.parametrize("method", METHODS)
def test_all_ranks(xla_target: Target, subtests: pytest.Subtests, method: str) -> None:
    calls, collective = METHODS[method]
    world = xla_target.topology.total
    questions = {
        dtype: replace(
            question(collective, ranks_of(world, (8, 3), dtype)),
            program=_over(calls),
        )
        for dtype in ("float32", "int32")
    }
    ask(subtests, xla_target, questions)


@pytest.mark.parametrize("reducer", ["max", "min", "mul", "avg"])
def test_reducers(xla_target: Target, subtests: pytest.Subtests, reducer: str) -> None:
    """Each method that reduces, with another reduction than the sum."""
    mean = reducer == "avg"
    op = dist.ReduceOp.AVG if mean else getattr(dist.ReduceOp, REDUCERS[reducer].c10d)

    def all_reduced(comm: Any, x: torch.Tensor, rank: Rank) -> torch.Tensor:
        parts = [part.contiguous() for part in x.chunk(len(rank.members))]
        part, of_single = torch.empty_like(parts[0]), torch.empty_like(parts[0])
        comm.reduce_scatter(part, parts, op)
        comm.reduce_scatter_single(of_single, x, op)
        torch.testing.assert_close(part.cpu(), of_single.cpu(), rtol=0, atol=0)
        comm.all_reduce(x, op)
        return torch.cat([x, part])

    world, combined = xla_target.topology.total, "sum" if mean else reducer
    inputs = ranks_of(world, (4, 3), "float32", combined)
    values = [v / world if mean else v for v in oracle.all_reduce(inputs, combined)]
    expected = [np.concatenate([v, v[rank : rank + 1]]) for rank, v in enumerate(values)]
    ask(subtests, xla_target, {reducer: Question(_over(all_reduced), inputs, expected, None)})


def _states(number: int) -> dict[str, object]:
    """Return what a rank's communicators say of themselves, each by its method and its property."""
    from torch_tpu._internal.distributed.torchcomm_tpu import create_torchcomms_tpu

    device, wait = torch.device("tpu:0"), timedelta(seconds=7)
    comm = create_torchcomms_tpu("TPU", device="tpu:0", name="all", hints={"a": "1"})
    unnamed = create_torchcomms_tpu("tpu", device=None)
    hints = comm.hints
    hints["b"] = "2"  # a copy
    states: dict[str, object] = {
        "rank": (comm.rank, comm.get_rank()) == (number, number),
        "size": (comm.size, comm.get_size()),
        "device": (comm.device, comm.get_device(), comm.device_type) == (device, device, "tpu"),
        "name": (comm.name, comm.get_name(), comm.get_comm_name()),
        "backend": (comm.backend_name, comm.get_backend_name()),
        "group": comm.get_backend() is comm.unsafe_get_backend() is dist.group.WORLD,
        "hints": comm.hints,
        "store": comm.store,
        "timeout": comm.timeout.total_seconds(),
        "unnamed": (unnamed.name, str(unnamed.device), unnamed.hints),
    }
    comm.set_timeout(wait)
    states["new-timeout"] = comm.timeout == wait
    comm.init("tpu:0", "renamed")
    states["renamed"] = (comm.name, comm.device == device)
    by_color = comm.split(color=number % 2, key=number // 2)
    by_place = comm.split(number % 2, number // 2)
    states["by-color"] = (by_color.rank, by_color.size, by_color.name)
    states["by-place"] = (by_place.rank, by_place.size, by_place.name, by_place.device == device)
    half = comm.split([2, 0])
    states["half"] = half and (half.rank, half.size, half.name, half.hints, half.backend_name)
    return states


def test_states(xla_target: Target) -> None:
    """What communicators say of themselves, and those that are split from them."""
    backend = BACKENDS[xla_target.framework]

    def ask_rank(number: int) -> dict[str, object]:
        backend.join()
        states = _states(number)
        backend.settle()
        return states

    for number, states in enumerate(run_ranks(ask_rank, xla_target.topology)):
        half = (number == 0, 2, "renamed_sub", {"a": "1"}, "tpu")
        assert states == {
            "rank": True,
            "size": (4, 4),
            "device": True,
            "name": ("all", "all", "all"),
            "backend": ("tpu", "tpu"),
            "group": True,
            "hints": {"a": "1"},
            "store": None,
            "timeout": 30.0,
            "unnamed": (f"torchcomm_tpu_{number}_4", "tpu:0", {}),
            "new-timeout": True,
            "renamed": ("renamed", True),
            "by-color": (number // 2, 4, f"renamed_split_{number % 2}_{number // 2}"),
            "by-place": (number // 2, 4, f"renamed_split_{number % 2}_{number // 2}", True),
            "half": half if number in {0, 2} else None,
        }


def test_finalized(xla_target: Target, subtests: pytest.Subtests) -> None:
    """A communicator that was closed refuses each call; before, it names what it does not have."""

    def calls(comm: Any, x: torch.Tensor, rank: Rank) -> torch.Tensor:
        for name, arguments in UNSUPPORTED.items():
            with pytest.raises(NotImplementedError):
                getattr(comm, name)(*arguments)
        with comm:
            assert not comm.is_finalized()
            comm.all_reduce(x)
        assert comm.is_finalized()
        comm.finalize()
        assert comm.is_finalized()
        for name, arguments in UNSUPPORTED.items():
            with pytest.raises(RuntimeError, match="'all' has already been finalized"):
                getattr(comm, name)(*arguments)
        for method, _ in METHODS.values():
            with pytest.raises(RuntimeError, match="'all' has already been finalized"):
                method(comm, x, rank)
        for exchange in (comm.send, comm.recv):
            with pytest.raises(RuntimeError, match="'all' has already been finalized"):
                exchange(x, 1)
        with pytest.raises(RuntimeError, match="split a finalized"):
            comm.split([0])
        assert comm.get_backend() is None
        return x

    inputs = ranks_of(xla_target.topology.total, (8, 3))
    of_sum = question("all_reduce", inputs)
    ask(subtests, xla_target, {"float32": replace(of_sum, program=_over(calls))})


def _alone(_: int) -> tuple[object, ...]:
    """Return what a communicator says that no launcher gave variables, and refuse wrong devices."""
    from torch_tpu._internal.distributed.torchcomm_tpu import (
        create_torchcomms_tpu,
        is_torchcomms_registered,
        register_torchcomms_tpu,
    )

    del dist.Backend.default_device_backend_map["tpu"]
    assert register_torchcomms_tpu() is False  # without torchcomms, torch alone knows it
    assert dist.Backend.default_device_backend_map["tpu"] == "tpu_dist"

    for name in ("RANK", "WORLD_SIZE"):
        os.environ.pop(name, None)
    os.environ["LOCAL_RANK"] = "3"
    comm = create_torchcomms_tpu("tpu", device="cpu")
    for name, expected in (("tpu:x", "'privateuseone:x'"), ("gpux", "gpux")):
        with pytest.raises(RuntimeError, match=expected):
            create_torchcomms_tpu("tpu", device=name)
        with pytest.raises(RuntimeError, match=expected):
            comm.init(name)
    comm.init(torch.device("meta"))
    comm.init()
    return comm.rank, comm.size, comm.name, comm.device_type, is_torchcomms_registered()


def test_before_joining(xla_target: Target) -> None:
    """Without a process group a communicator reduces nothing; torchcomms's variables come first."""
    backend = BACKENDS[xla_target.framework]

    def ask_rank(number: int) -> tuple[object, ...]:
        from torch_tpu._internal.distributed.torchcomm_tpu import create_torchcomms_tpu

        os.environ |= {"TORCHCOMM_RANK": "7", "TORCHCOMM_SIZE": "9"} if number % 2 else {}
        comm = create_torchcomms_tpu("tpu", device="tpu:0")
        for name in ("all_reduce", "broadcast"):
            with pytest.raises(RuntimeError, match="ProcessGroupTpu is not initialized"):
                getattr(comm, name)(torch.ones(3))
        backend.join()
        backend.settle()
        return comm.rank, comm.size, comm.get_backend()

    assert fork_ranks(_alone, 1, deadline=50) == [(3, 1, "torchcomm_tpu_3_1", "meta", False)]
    ranks = run_ranks(ask_rank, xla_target.topology)
    assert ranks == [(0, 4, None), (7, 9, None), (2, 4, None), (7, 9, None)]


def test_store(xla_target: Target, tmp_path: Path) -> None:
    """With a store it makes a process group of its own."""
    inputs, world = ranks_of(xla_target.topology.total, (4, 3)), xla_target.topology.total
    backend = BACKENDS[xla_target.framework]

    def ask_rank(number: int) -> np.ndarray:
        from torch_tpu._internal.distributed.torchcomm_tpu import create_torchcomms_tpu

        device = backend.join()
        store = dist.FileStore(str(tmp_path / "store"), world)
        comm = create_torchcomms_tpu("tpu", device="tpu:0", store=store)
        assert comm.store is store
        assert comm.get_backend() is not dist.group.WORLD
        total = torch.tensor(inputs[number], device=device)
        comm.all_reduce(total)
        values = total.cpu().numpy()
        backend.settle()
        return values

    check(run_ranks(ask_rank, xla_target.topology), oracle.all_reduce(inputs, "sum"))


def test_split(xla_target: Target, subtests: pytest.Subtests) -> None:
    """A communicator of two ranks, split from that of all."""
    world = xla_target.topology.total
    of = layout("pairs", world)
    of_pairs = question("all_reduce", ranks_of(world, (8, 3)), of)
    ask(subtests, xla_target, {"float32": replace(of_pairs, program=_over(_all_reduce))}, of)


def test_send(xla_target: Target, subtests: pytest.Subtests) -> None:
    """Rank 0 sends to rank 1; the others do nothing."""

    def sends(comm: Any, x: torch.Tensor, rank: Rank) -> torch.Tensor:
        if rank.number == 0:
            comm.send(x, 1)
        elif rank.number == 1:
            comm.recv(x, 0)
        return x

    def sends_over_gloo(x: torch.Tensor, rank: Rank) -> torch.Tensor:
        if rank.number == 0:
            dist.send(x, 1)
        elif rank.number == 1:
            dist.recv(x, 0)
        return x

    inputs = ranks_of(xla_target.topology.total, (4, 3))
    expected = [inputs[0], inputs[0], *inputs[2:]]
    questions = {"float32": Question(_over(sends), inputs, expected, sends_over_gloo)}
    ask(subtests, xla_target, questions)
