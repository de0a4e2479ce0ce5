"""Launchers start the processes of a job as on a TPU machine, in a script and in a test file."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from support.commands import xla_harness
from support.project import Project

from harness.messages.ports import free_port

# What a user's training script has: nothing in it knows of the harness.
WORKER = """\
import gc
import os

gc.disable()  # importing torch_xla is most of the work here, a quarter of it looks for garbage

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.runtime as xr
from torch_xla._internal import pjrt


def sum_over_all(index):
    del index  # several processes start in any order; the ordinal is what counts
    x = torch.full((2,), 1.0 + xr.global_ordinal(), device=torch_xla.device())
    assert (xr.world_size(), xr.process_count(), xr.addressable_device_count()) == (2, 2, 1)
    assert xm.all_reduce("sum", x).cpu().tolist() == [3.0, 3.0]
    os.write(1, f"ordinal {xr.global_ordinal()}: summed\\n".encode())  # whole: others write too


def of_torch_spawn(index, count):
    pjrt.initialize_multiprocess(index, count)
    sum_over_all(index)


def of_torchrun():
    dist.init_process_group("xla", init_method="xla://")
    x = torch.full((2,), 1.0 + dist.get_rank(), device=torch_xla.device())
    dist.all_reduce(x)
    assert x.cpu().tolist() == [3.0, 3.0]
    os.write(1, f"ordinal {dist.get_rank()}: summed\\n".encode())
"""
# One script a launcher, by the launcher's name.
SCRIPTS = {
    "torch_xla.launch": "torch_xla.launch(sum_over_all)",
    "xmp.spawn": "xmp.spawn(sum_over_all)",
    "torch.multiprocessing.spawn": "mp.spawn(of_torch_spawn, args=(2,), nprocs=2)",
    "torchrun": "of_torchrun()",
}
JAX = """\
import os
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

jax.distributed.initialize(sys.argv[1], 2, int(os.environ["RANK"]))
assert (jax.process_count(), jax.local_device_count(), jax.device_count()) == (2, 1, 2)
everyone = multihost_utils.process_allgather(jnp.full(2, 1.0 + jax.process_index()))
assert np.asarray(everyone).tolist() == [[1.0, 1.0], [2.0, 2.0]]
print(f"ordinal {jax.process_index()}: summed", flush=True)
"""
LATE = """\
import os
import time

while time.process_time() < 6 * int(os.environ["RANK"]):
    pass

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

parts = NamedSharding(Mesh(np.array(jax.devices()), "x"), PartitionSpec("x"))
full = np.array([1.0, 2.0], np.float32)
total = jax.jit(lambda v: v.sum())(jax.make_array_from_callback((2,), parts, lambda i: full[i]))
print(total, flush=True)
"""
# In a module of its own, whose processes have less to import.
FAILING = """\
def fail_in_second(index):
    assert index == 0
"""
TEST_FILE = """\
import torch.multiprocessing as mp
import torch_xla.distributed.xla_multiprocessing as xmp
from failing import fail_in_second
from worker import sum_over_all

def test_xmp_spawn():
    xmp.spawn(sum_over_all)

def test_a_process_that_fails_fails_the_test():
    mp.spawn(fail_in_second, nprocs=2)
"""
SUMMED = ["ordinal 0: summed", "ordinal 1: summed"]


def write_scripts(folder: Path) -> None:
    (folder / "worker.py").write_text(WORKER, encoding="utf-8")
    (folder / "failing.py").write_text(FAILING, encoding="utf-8")
    for name, call in SCRIPTS.items():
        script = f'from worker import *\n\nif __name__ == "__main__":\n    {call}\n'
        (folder / f"{name}.py").write_text(script, encoding="utf-8")
    (folder / "of_jax.py").write_text(JAX, encoding="utf-8")


def run(folder: Path, *words: str) -> list[str]:
    """The sorted lines that a command prints, without the rank in front of them."""
    ran = xla_harness("run", "--topology=2", *words, cwd=folder)
    assert ran.returncode == 0, ran.stderr
    return sorted(line.rpartition("| ")[2] for line in ran.stdout.splitlines())


@pytest.mark.long
@pytest.mark.parametrize("launcher", ["torch_xla.launch", "torch.multiprocessing.spawn"])
def test_launcher_in_a_script(tmp_path: Path, launcher: str) -> None:
    write_scripts(tmp_path)
    assert run(tmp_path, "--", sys.executable, f"{launcher}.py") == SUMMED


@pytest.mark.long
def test_torchrun_of_a_script(tmp_path: Path) -> None:
    write_scripts(tmp_path)
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}")
    assert run(tmp_path, "--", sys.executable, *torchrun, "torchrun.py") == SUMMED


def test_jax_distributed_in_each_process(tmp_path: Path) -> None:
    write_scripts(tmp_path)
    command = (sys.executable, "of_jax.py", f"127.0.0.1:{free_port()}")
    assert run(tmp_path, "--processes=chip", "--", *command) == SUMMED


@pytest.mark.long
def test_a_process_that_still_imports_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer than one that does nothing: a loaded machine takes long to start them all."""
    (tmp_path / "late.py").write_text(LATE, encoding="utf-8")
    monkeypatch.setenv("VIRTUAL_TPU_DEADLINE", "2")
    assert run(tmp_path, "--processes=chip", "--", sys.executable, "late.py") == ["3.0", "3.0"]


@pytest.mark.long
def test_launchers_in_a_test_file(project: Project) -> None:
    write_scripts(project.path)
    project.write("test_theirs.py", TEST_FILE)
    path = os.pathsep.join([str(project.path), os.environ.get("PYTHONPATH", "")])
    options = ("--lane=virtual-tpu", "--topology=2", "--processes=chip", "--deadline=250")
    ran = project.run(*options, PYTHONPATH=path)
    outcomes = {name.partition("[")[0]: outcome for name, outcome in ran.outcomes.items()}
    assert outcomes == {
        "test_xmp_spawn": "passed",
        "test_a_process_that_fails_fails_the_test": "failed",
    }, ran.stdout
