"""Whoever has no token takes no part in a job's programs, and holds nobody up who has one."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.jobs import executors

from harness.job.ranks import run_ranks
from harness.model.topology import Topology

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("2@chip"),
    pytest.mark.deadline(90),
]
FILES = 256  # that the executor, as every process of the job, may open
ENOUGH = 1500  # connections
# Connects and talks as fast as it can, and holds as many connections as it can. Says each hundred.
FLOOD = """\
import array, os, random, socket, sys, time
address = b"\\0xla-harness-" + sys.argv[1].encode()
files = [os.open("/dev/null", os.O_RDONLY), os.open("/dev/zero", os.O_RDONLY)]
rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))]
words = [b"", b"\\0", b"hello", b"hello " + b"0" * 64 + b" 1 2 1", b"hello - 1 2 1",
         b"\\xff" * 70000, b"execute 1 2 3 0,1 0\\n", b"a" * 200000, b"hello " + b"0," * 30000]
held, pick = [], random.Random(1)
made = 0
while True:
    try:
        one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        one.connect(address)
    except OSError:
        del held[: len(held) // 2 + 1]
        continue
    one.setblocking(False)
    try:
        one.sendmsg([pick.choice(words)], rights if pick.random() < 0.5 else [])
    except OSError:
        pass
    if pick.random() < 0.8:
        held.append(one)
    else:
        one.close()
    made += 1
    if made % 100 == 0:
        os.write(1, b".")
"""


@contextmanager
def flood(job: str) -> Iterator[None]:
    """Strangers, from when there have been enough of them on."""
    command = (sys.executable, "-c", FLOOD, job)
    with subprocess.Popen(command, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        try:
            for _ in range(ENOUGH // 100):
                assert running.stdout.read(1)
            yield
        finally:
            running.kill()


def total() -> float:
    """A sum over all devices of the job."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    parts = NamedSharding(Mesh(np.array(jax.devices()), "x"), PartitionSpec("x"))
    full = np.array([1.0, 2.0], np.float32)
    array = jax.make_array_from_callback((2,), parts, lambda index: full[index])
    return float(jax.jit(lambda v: v.sum())(array))


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


def executor(job: str) -> int:
    while not (pids := executors(job)):
        time.sleep(0.01)
    return pids[0]


def test_strangers_end_no_job(topology: Topology, tmp_path: Path) -> None:
    """They are there before the second rank comes, while both work, and are gone at the end."""
    flooded = tmp_path / "flooded"

    def rank(number: int) -> tuple[list[float], int]:
        job = os.environ["XLA_HARNESS_JOB"]
        resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))
        if number == 1:
            server = executor(job)
            time.sleep(0.5)
            with flood(job):
                totals = [total() for _ in range(20)]
                files = len(list(Path(f"/proc/{server}/fd").iterdir()))
                flooded.touch()
            return [*totals, total()], files
        totals = [total() for _ in range(20)]
        wait_for(flooded)
        return [*totals, total()], 0

    (first, _), (second, files) = run_ranks(rank, topology, deadline=80)
    assert first == second == [3.0] * 21
    assert files < FILES // 2
