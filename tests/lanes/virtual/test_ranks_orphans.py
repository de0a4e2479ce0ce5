"""When pytest is killed, nothing of a job stays behind, whatever its ranks were doing."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from support.jobs import assert_none, executors
from support.processes import assert_gone
from support.project import Project

HANGS = """\
import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from harness.job.ranks import run_ranks

@pytest.mark.lanes("virtual-tpu")
@pytest.mark.topologies("4@chip")
def test_x(topology):
    def rank(number):
        Path(f"{number}.new").write_text(f"{os.getpid()} {os.environ['XLA_HARNESS_JOB']}")
        Path(f"{number}.new").rename(f"{number}.rank")
        mesh = Mesh(np.array(jax.devices()), "x")
        part = NamedSharding(mesh, P("x"))
        ones = jax.make_array_from_callback((4, 2), part, lambda index: np.ones((1, 2)))
        psum = lambda v: lax.psum(v, "x")
        step = jax.jit(jax.shard_map(psum, mesh=mesh, in_specs=P("x"), out_specs=P("x")))
        step(ones).block_until_ready()
        Path(f"{number}.met").touch()
        if number != 3:
            step(ones).block_until_ready()
        time.sleep(600)

    run_ranks(rank, topology)
"""


def wait_for(folder: Path, pattern: str) -> list[Path]:
    """The files of four ranks."""
    end = time.monotonic() + 60
    while len(files := sorted(folder.glob(pattern))) < 4 and time.monotonic() < end:
        time.sleep(0.02)
    assert len(files) == 4
    return files


@pytest.mark.parametrize("when", ["starting", "waiting"])
def test_killing_pytest_ends_a_job(project: Project, when: str) -> None:
    project.write("test_inner.py", HANGS)
    with project.start("--lane=virtual-tpu") as pytest_process:
        ranks = [file.read_text().split() for file in wait_for(project.path, "*.rank")]
        ((job, *others),) = [{job for _, job in ranks}]
        assert others == []
        if when == "waiting":
            wait_for(project.path, "*.met")
        while not executors(job):
            time.sleep(0.01)
        pytest_process.send_signal(signal.SIGKILL)
        pytest_process.communicate(timeout=100)
    assert_gone([int(pid) for pid, _ in ranks])
    assert_none(job)
