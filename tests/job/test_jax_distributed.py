"""``jax.distributed.initialize()`` without arguments finds its job, in every shape of one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax._src import distributed
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from support.commands import xla_harness
from support.project import Project

from harness.job.ranks import run_ranks
from harness.messages.ports import free_port
from harness.model.topology import Topology

# Each would send JAX elsewhere: to another cluster, another list of processes or another address.
ELSEWHERE = {
    "SLURM_JOB_ID": "7",
    "SLURM_NTASKS": "1",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_NODELIST": "node[1-2]",
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1:34911",
    "OMPI_COMM_WORLD_SIZE": "1",
    "OMPI_COMM_WORLD_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "TPU_PROCESS_ADDRESSES": "10.0.0.1:8476,10.0.0.2:8476",
    "JAX_COORDINATOR_BIND_ADDRESS": f"127.0.0.1:{free_port()}",
}
SCRIPT = """\
import gc

gc.disable()

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

jax.distributed.initialize()
parts = NamedSharding(Mesh(np.array(jax.devices()), "x"), PartitionSpec("x"))
full = np.arange(jax.device_count(), dtype=np.float32)
values = jax.make_array_from_callback(full.shape, parts, lambda index: full[index])
total = float(jax.jit(lambda v: v.sum())(values))
local = [device.id for device in jax.local_devices()]
print(jax.process_index(), jax.process_count(), local, total, flush=True)
"""
TEST_FILE = """\
import jax


def test_is_a_job_of_one():
    jax.distributed.initialize()
    assert (jax.process_index(), jax.process_count(), jax.local_device_count()) == (0, 1, 4)
    assert jax.numpy.ones(3).sum() == 3
"""


@pytest.mark.lanes("virtual-tpu")
@pytest.mark.topologies("4@chip", "8@host", "2x8@host", "2x4@slice")
def test_each_process_is_who_it_is(topology: Topology) -> None:
    count = topology.process_count

    def rank(number: int) -> tuple[Any, ...]:
        jax.distributed.initialize()
        parts = NamedSharding(Mesh(np.array(jax.devices()), "x"), PartitionSpec("x"))
        full = np.arange(topology.total, dtype=np.float32)
        values = jax.make_array_from_callback(full.shape, parts, lambda index: full[index])
        total = float(jax.jit(lambda v: v.sum())(values))
        local = [device.id for device in jax.local_devices()]
        indices = {device.process_index for device in jax.local_devices()}
        given = distributed.global_state.process_id
        who = (jax.process_index(), given, indices, jax.process_count())
        jax.distributed.shutdown()
        return *who, local, total

    each = topology.total // count
    total = float(np.arange(topology.total, dtype=np.float32).sum())
    for number, who in enumerate(run_ranks(rank, topology)):
        local = list(range(number * each, (number + 1) * each))
        assert who == (number, number, {number}, count, local, total)


def run(folder: Path, *options: str, **environment: str) -> list[str]:
    """Run the script on the virtual TPU; return its lines in the order of the ranks."""
    (folder / "train.py").write_text(SCRIPT, encoding="utf-8")
    ran = xla_harness(
        "run", *options, "--", sys.executable, "train.py", cwd=folder, env=environment
    )
    assert ran.returncode == 0, ran.stderr
    return sorted(ran.stdout.splitlines())


def test_a_script_in_each_process(tmp_path: Path) -> None:
    """Whatever another scheduler, or a job that this one was started in, has left behind."""
    lines = run(tmp_path, "--topology=2x2", "--processes=chip", **ELSEWHERE)
    assert lines == [f"rank {number} | {number} 4 [{number}] 6.0" for number in range(4)]


def test_a_script_that_has_all_slices_is_a_job_of_one(tmp_path: Path) -> None:
    assert run(tmp_path, "--topology=2x2") == ["0 1 [0, 1, 2, 3] 6.0"]


def test_a_plain_test_is_a_job_of_one(project: Project) -> None:
    """Its launchers start the processes, and it is none of them."""
    project.write("test_theirs.py", TEST_FILE)
    ran = project.run("--lane=virtual-tpu", "--topology=4", "--processes=chip")
    assert list(ran.outcomes.values()) == ["passed"], ran.stdout
