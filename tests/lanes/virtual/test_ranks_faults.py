"""Bad input and faults of a job of several processes: each an error that says what is wrong."""

from __future__ import annotations

import os
import resource
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.jobs import assert_none, executors, remains

from harness.isolation.ranks import RankError, fork_ranks
from harness.job.ranks import run_ranks
from harness.lanes.events import EventLog
from harness.model.topology import Topology

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("2@chip"),
    pytest.mark.environment(VIRTUAL_TPU_DEADLINE="20"),
    pytest.mark.deadline(90),
]
KEPT: list[Any] = []  # programs, and with them the memory that their executions share


def sums(rows: int = 1, dtype: str = "float32") -> Any:
    """What a reduction over all devices has made of ones, as it lies on this process's."""
    import jax
    import numpy as np
    from jax import lax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    devices = jax.devices()
    part = PartitionSpec("x")
    mesh = Mesh(np.array(devices), "x")
    full = np.ones((len(devices) * rows, 2), dtype)
    ones = jax.make_array_from_callback(full.shape, NamedSharding(mesh, part), lambda i: full[i])
    step = jax.shard_map(lambda v: lax.psum(v, "x"), mesh=mesh, in_specs=part, out_specs=part)
    program = jax.jit(step)
    KEPT.append(program)
    return program(ones)


def values(array: Any) -> list[list[float]]:
    import numpy as np

    return [np.asarray(shard.data).tolist() for shard in array.addressable_shards]


def work(_: int) -> list[list[float]]:
    return values(sums())


def segments(process: int) -> int:
    """How many pieces of memory that ranks share a process has mapped."""
    return Path(f"/proc/{process}/maps").read_text().count("memfd:xla-harness-segment")


def change(number: int, **variables: str) -> Callable[[int], None]:
    """Give one rank other variables."""
    return lambda rank: os.environ.update(variables) if rank == number else None


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            change(1, XLA_HARNESS_JOB_TOKEN="0" * 64),
            r"can't join its job: XLA_HARNESS_JOB_TOKEN is not that of this job",
        ),
        (
            change(1, CLOUD_TPU_TASK_ID="0"),
            r"process 0 can't join its job: rank 0 has come already, as process \d+",
        ),
        (
            change(1, CLOUD_TPU_TASK_ID="2"),
            r"CLOUD_TPU_TASK_ID=2: expected a process of the slice, from 0 to 1",
        ),
        (
            change(1, TPU_PROCESS_BOUNDS="4,1,1"),
            r"TPU_PROCESS_BOUNDS=4,1,1 by TPU_CHIPS_PER_PROCESS_BOUNDS=1,1,1: expected 1,2,1 in",
        ),
        (change(1, XLA_HARNESS_JOB=""), r"XLA_HARNESS_JOB is not set. run_ranks"),
        (change(1, XLA_HARNESS_JOB="j" * 200), r"XLA_HARNESS_JOB is too long"),
        (change(0, VIRTUAL_TPU_PYTHON="/nowhere/python"), r"can't join its job: No such file"),
    ],
    ids=["token", "twice", "no-rank", "more-than-chips", "no-job", "long-job", "no-python"],
)
def test_a_wrong_rank_is_refused(
    topology: Topology, tpu_events: EventLog, fault: Callable[[int], None], message: str
) -> None:
    def rank(number: int) -> list[list[float]]:
        before = dict(os.environ)
        fault(number)
        is_wrong, is_first = os.environ != before, "No such file" in message
        if is_first and not is_wrong:
            time.sleep(600)  # the wrong one is to start the executor
        while is_wrong and not is_first and not tpu_events.read().of("client"):
            time.sleep(0.01)  # it comes second
        return work(number)

    with pytest.raises(RankError, match=message):
        run_ranks(rank, topology, deadline=60)


def test_jobs_at_once_do_not_disturb_each_other(topology: Topology) -> None:
    answers = fork_ranks(lambda _: run_ranks(work, topology), 2, deadline=60)
    assert answers == [[[[[2.0, 2.0]]]] * 2] * 2


def test_nothing_is_left_and_no_shared_memory_file_is_used(topology: Topology) -> None:
    def rank(_: int) -> tuple[str, str, int]:
        values(sums())
        job = os.environ["XLA_HARNESS_JOB"]
        return job, Path("/proc/self/maps").read_text(), len(remains(job))

    ((job, maps, count), _) = run_ranks(rank, topology)
    assert count > 1
    assert "memfd:xla-harness-segment" in maps
    assert "/dev/shm" not in maps
    assert_none(job)


def test_memory_is_used_again_and_removed(topology: Topology) -> None:
    def rank(_: int) -> tuple[int, int]:
        from jax.extend import backend

        total = sums()
        for _ in range(20):
            total = KEPT[0](total)
            values(total)
        used = segments(os.getpid())
        (executor,) = executors(os.environ["XLA_HARNESS_JOB"])
        del total
        KEPT.clear()
        backend.clear_backends()
        end = time.monotonic() + 20
        while segments(executor) and time.monotonic() < end:
            time.sleep(0.05)
        return used, segments(os.getpid()) + segments(executor)

    for used, left in run_ranks(rank, topology):
        assert 1 <= used <= 3  # the next one may come before the last has been given back
        assert left == 0


def test_large_results_stay_as_they_are(topology: Topology) -> None:
    """They lie in memory that later programs of the ranks use too, once nobody has them."""

    def rank(_: int) -> list[float]:
        import jax
        import numpy as np

        total = sums(rows=1 << 16)
        program = KEPT[-1]
        kept = {}
        for factor in range(1, 13):
            result = program(jax.jit(lambda v, by: v * by)(total, float(factor)))
            if factor % 3 == 0:
                kept[factor] = result  # the others are gone at once
        taken = jax.jit(lambda v: v + 1, donate_argnums=0)(kept.pop(6))
        latest = program(total)
        arrays = [
            np.asarray(array.addressable_data(0)) for array in (*kept.values(), taken, latest)
        ]
        assert all(np.ptp(array) == 0 for array in arrays)
        return [float(array[0, 0]) for array in arrays]

    assert run_ranks(rank, topology) == [[12.0, 36.0, 48.0, 25.0, 4.0]] * 2


def test_memory_that_runs_out_is_an_error(topology: Topology) -> None:
    def rank(number: int) -> list[list[float]]:
        values(sums())
        if number == 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, resource.RLIM_INFINITY))
        return values(sums(rows=1 << 20))

    with pytest.raises(RankError, match=r"no memory for \d+ bytes that several processes share"):
        run_ranks(rank, topology, deadline=60)


def test_an_executor_that_is_killed_ends_the_job(topology: Topology) -> None:
    def rank(number: int) -> list[list[float]]:
        values(sums())
        if number == 0:
            (executor,) = executors(os.environ["XLA_HARNESS_JOB"])
            os.kill(executor, signal.SIGKILL)
        for _ in range(1000):
            values(sums())
            time.sleep(0.01)
        return []

    with pytest.raises(RankError, match="the process that runs the job's programs has ended"):
        run_ranks(rank, topology, deadline=60)


def test_a_fork_after_the_client_started_is_named(topology: Topology) -> None:
    """It runs what is compiled: JAX's own threads, which compile, are missing in a fork too."""

    def rank(number: int) -> list[float]:
        total = sums()
        (program,) = KEPT
        total = program(total)
        values(total)
        return fork_ranks(lambda _: program(total), 1, deadline=60) if number == 1 else []

    with pytest.raises(RankError, match=r"process \d+ was forked after process \d+ had created"):
        run_ranks(rank, topology, deadline=60)


def test_strangers_on_the_socket_do_no_harm(topology: Topology) -> None:
    def rank(number: int) -> list[list[float]]:
        values(sums())
        name = f"\0xla-harness-{os.environ['XLA_HARNESS_JOB']}"
        for data in (b"", b"hello", b"\xff" * 1000, b"hello - 7 2 1,x", b"execute 1 1 1 0,1 0\n"):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
                stranger.connect(name)
                stranger.send(data)
                assert data == b"" or stranger.recv(1000).startswith(b"refused ")
        return values(sums())

    assert run_ranks(rank, topology) == [[[[2.0, 2.0]]]] * 2


def test_a_second_client_in_a_process(topology: Topology) -> None:
    def rank(number: int) -> list[list[float]]:
        from jax.extend import backend

        first = values(sums())
        KEPT.clear()
        backend.clear_backends()
        return first + values(sums())

    assert run_ranks(rank, topology) == [[[[2.0, 2.0]]] * 2] * 2


def test_a_rank_returns_before_its_programs_have_run(topology: Topology) -> None:
    """Who waits for nothing is waited for: the others need what it has queued."""

    def rank(number: int) -> list[list[float]]:
        results = [sums() for _ in range(30)]
        return values(results[-1]) if number == 0 else []

    assert run_ranks(rank, topology) == [[[[2.0, 2.0]]], []]


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("layout", "a result has a layout of its own"),
        ("small", "a result is of a type of less than a byte"),
    ],
)
def test_what_cannot_be_handed_over_is_refused(topology: Topology, kind: str, why: str) -> None:
    """In a job for each: the first refusal ends its job, perhaps before a second program comes."""

    def rank(_: int) -> str:
        import jax
        from jax.experimental.layout import Format, Layout
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        whole = NamedSharding(Mesh(jax.devices(), "x"), PartitionSpec())
        other = jax.jit(lambda v: v * 2, out_shardings=Format(Layout((1, 0)), whole))
        small = jax.jit(lambda v: v.astype("int4"), out_shardings=whole)
        with pytest.raises((RuntimeError, ValueError)) as refused:
            values({"layout": other, "small": small}[kind](sums()))
        return str(refused.value)

    for message in run_ranks(rank, topology):
        assert why in message


def test_a_sharded_program_that_exchanges_nothing_waits_for_nobody(topology: Topology) -> None:
    """JAX runs it on all of a process's devices at once; only one process runs it here."""

    def rank(number: int) -> list[list[float]]:
        import jax
        from jax.experimental.layout import Format, Layout

        ones = sums()
        if number == 1:
            return []
        own = jax.jit(lambda v: v * 3, out_shardings=Format(Layout((1, 0)), ones.sharding))
        return values(own(ones))

    assert run_ranks(rank, topology) == [[[[6.0, 6.0]]], []]


def test_a_program_on_devices_of_another_process_does_nothing_here(topology: Topology) -> None:
    """JAX runs a program in each process, also where none of its devices is."""

    def rank(_: int) -> list[list[float]]:
        import jax
        import numpy as np
        from jax.sharding import SingleDeviceSharding

        full = np.ones((1, 2), np.float32)
        there = SingleDeviceSharding(jax.devices()[1])
        ones = jax.make_array_from_callback(full.shape, there, lambda i: full[i], dtype=full.dtype)
        return values(jax.jit(lambda v: v * 3)(ones))

    assert run_ranks(rank, topology) == [[], [[[3.0, 3.0]]]]


@pytest.mark.parametrize("dtype", ["bool", "int8", "bfloat16", "float64", "complex64"])
def test_types_arrive_as_they_are(topology: Topology, dtype: str) -> None:
    def rank(_: int) -> tuple[str, list[float]]:
        import jax
        import jax.numpy as jnp
        import numpy as np
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        jax.config.update("jax_enable_x64", True)
        mesh = Mesh(np.array(jax.devices()), "x")
        full = np.arange(4).astype(jnp.dtype(dtype))
        parts = NamedSharding(mesh, PartitionSpec("x"))
        array = jax.make_array_from_callback(full.shape, parts, lambda i: full[i])
        whole = jax.jit(lambda v: v, out_shardings=NamedSharding(mesh, PartitionSpec()))(array)
        values = np.asarray(whole.addressable_shards[0].data)
        return str(values.dtype), values.astype(complex).real.tolist()

    expected = [0.0, 1.0, 1.0, 1.0] if dtype == "bool" else [0.0, 1.0, 2.0, 3.0]
    assert run_ranks(rank, topology) == [(dtype, expected)] * 2


@pytest.mark.topologies("2@chip", "2x2@slice")
def test_a_program_that_exchanges_nothing_waits_for_nobody(topology: Topology) -> None:
    """torch_xla compiles each program for all devices; each rank may run as many as it likes."""

    def rank(number: int) -> list[float]:
        import torch
        import torch_xla

        value = torch.ones(2).to(torch_xla.device())
        for _ in range(3 + number):
            value = value * 2
            torch_xla.sync()
        numbers: list[float] = value.cpu().tolist()
        return numbers

    assert run_ranks(rank, topology) == [[8.0, 8.0], [16.0, 16.0]]
