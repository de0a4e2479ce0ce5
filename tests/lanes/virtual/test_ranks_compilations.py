"""Forked ranks compile equal programs once for all, and wait for nobody who can't go on."""

from __future__ import annotations

import fcntl
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from harness.job.ranks import run_ranks
from harness.lanes.events import EventLog
from harness.model.topology import Topology

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("2@chip"),
    pytest.mark.deadline(90),
]


def over_all() -> tuple[Any, Any]:
    """A program that sums over all devices of the job, and its argument: ones."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()), "x")
    sharding = NamedSharding(mesh, PartitionSpec("x"))
    ones = jax.make_array_from_callback((2, 3), sharding, lambda _: np.ones((1, 3), np.float32))
    return jax.jit(lambda x: x.sum(), out_shardings=NamedSharding(mesh, PartitionSpec())), ones


def total(_: int) -> float:
    program, ones = over_all()
    return float(program(ones))


def shared_file() -> int:
    """The descriptor of the file that ranks keep their compilations in."""
    files = [
        int(link.name)
        for link in Path("/proc/self/fd").iterdir()
        if link.is_symlink() and "xla-harness-compilations" in str(link.readlink())
    ]
    assert len(files) == 1
    return files[0]


def test_each_program_is_compiled_by_one_rank(topology: Topology, tpu_events: EventLog) -> None:
    assert run_ranks(total, topology) == [6.0, 6.0]
    events = tpu_events.read()
    compiled = events.of("compile")
    distinct = {event.fingerprint for event in compiled}
    assert distinct
    assert len(events.of("reuse")) == len(compiled) - len(distinct) > 0


def test_ranks_compile_what_differs(topology: Topology) -> None:
    def work(number: int) -> float:
        import jax

        return float(jax.jit(lambda x: x * (number + 2) + 1)(5))

    assert run_ranks(work, topology) == [11.0, 16.0]


def test_a_reused_program_is_serialised_whole(topology: Topology) -> None:
    def work(_: int) -> bytes:
        import jax

        program, ones = over_all()
        loaded = program.lower(ones).compile().runtime_executable()
        return bytes(jax.local_devices()[0].client.serialize_executable(loaded))

    first, second = run_ranks(work, topology)
    # As sets of bytes: JAX adds its options, whose maps have another order in each process.
    assert sorted(first) == sorted(second)


def test_nobody_waits_for_a_stopped_rank(topology: Topology) -> None:
    reading, writing = os.pipe()

    def work(number: int) -> float:
        import jax

        jax.devices()  # for which all have to come
        if number == 0:
            fcntl.lockf(shared_file(), fcntl.LOCK_EX)  # as while it compiles, whatever it is
            os.write(writing, f"{os.getpid():>16}".encode())
            os.kill(os.getpid(), signal.SIGSTOP)
            return 1.0
        stopped = int(os.read(reading, 16))
        value = float(jax.jit(lambda x: 3 * x + 1)(2))
        os.kill(stopped, signal.SIGCONT)
        return value

    assert run_ranks(work, topology, deadline=60) == [1.0, 7.0]


def test_without_the_file_each_rank_compiles(topology: Topology, tpu_events: EventLog) -> None:
    def work(number: int) -> float:
        os.close(shared_file())
        return total(number)

    assert run_ranks(work, topology) == [6.0, 6.0]
    assert not tpu_events.read().of("reuse")


def test_a_program_that_a_framework_has_loaded_runs_over_all(topology: Topology) -> None:
    """As TorchTPU loads all that it compiles, and JAX what is in its compilation cache."""

    def work(_: int) -> float:
        from jax.experimental.serialize_executable import deserialize_and_load, serialize

        program, ones = over_all()
        loaded = deserialize_and_load(*serialize(program.lower(ones).compile()))
        again = deserialize_and_load(*serialize(loaded))  # what was loaded is serialised whole
        return float(loaded(ones)) + float(again(ones))

    assert run_ranks(work, topology) == [12.0, 12.0]
