"""torch_xla takes the devices of lane ``virtual-gpu`` for CUDA's, as long as it has CUDA."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import xla_harness
from support.paths import ROOT
from support.project import Project

from harness.junit import report
from harness.stacks.catalogue import Catalogue
from harness.stacks.environments import Environments

pytestmark = pytest.mark.long

ALONE = """
import torch, torch_xla, torch_xla.core.xla_model as xm, torch_xla.runtime as xr
import numpy as np
import torch_xla.distributed.spmd as xs

xr.use_spmd()
count = xr.global_runtime_device_count()
values = torch.arange(8.0, device=xm.xla_device())
xs.mark_sharding(values, xs.Mesh(np.arange(count), (count,), ("x",)), ("x",))
kinds = {each["compute_capability"] for each in xr.global_runtime_device_attributes()}
print(xr.device_type(), count, kinds, (values * 2).sum().item())
"""
JOB = """
import os
import torch, torch_xla.core.xla_model as xm, torch_xla.runtime as xr
import torch.distributed as dist
import torch_xla.distributed.xla_backend

dist.init_process_group("xla", init_method="xla://")
values = torch.full((2,), 1.0 + dist.get_rank(), device=xm.xla_device())
dist.all_reduce(values)
place = f"{dist.get_rank()} of {xr.world_size()}, {xr.addressable_device_count()} here"
os.write(1, f"{place}: {values.cpu().tolist()}\\n".encode())
"""
SPAWN = """
import os
import torch, torch_xla.core.xla_model as xm, torch_xla.runtime as xr
import torch_xla.distributed.xla_multiprocessing as xmp

def rank(index):
    values = torch.full((2,), 1.0 + xr.global_ordinal(), device=xm.xla_device())
    total = xm.all_reduce("sum", values).cpu().tolist()
    place = f"{xr.global_ordinal()} of {xr.world_size()}, {xr.addressable_device_count()} here"
    os.write(1, f"{place}: {total}\\n".encode())

if __name__ == "__main__":
    xmp.spawn(rank)
"""
STACKS = ("2.5.1", "2.8.0")
LAST = "2.8.0"
RANKS = [f"{rank} of 2, 1 here: [3.0, 3.0]" for rank in range(2)]


def run(folder: Path, script: str, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(script, encoding="utf-8")
    return xla_harness("run", "--lane", "virtual-gpu", *words, "train.py", cwd=folder)


def stack_arguments(name: str) -> tuple[str, str]:
    """Name the stack, if its environment was made here: that takes several GB."""
    stack = Catalogue(ROOT / "fixtures" / "stacks").find(name)
    if Environments().existing(stack) is None:
        pytest.skip(f"xla-harness stacks create {name}")
    return "--stack", name


@pytest.mark.parametrize("stack", STACKS)
def test_one_process_has_all_gpus(tmp_path: Path, stack: str) -> None:
    options = (*stack_arguments(stack), "--topology", "2xh200:2")
    ran = run(tmp_path, ALONE, *options, "--", "python")
    assert ran.stdout == "CUDA 4 {'9.0'} 56.0\n", ran.stderr


@pytest.mark.parametrize("stack", STACKS)
def test_each_process_of_a_job_has_one(tmp_path: Path, stack: str) -> None:
    options = (*stack_arguments(stack), "--topology", "2", "--processes", "device")
    ran = run(tmp_path, JOB, *options, "--", "python")
    assert sorted(line.partition("| ")[2] for line in ran.stdout.splitlines()) == RANKS, ran.stderr


@pytest.mark.parametrize("stack", STACKS)
def test_torch_xla_starts_a_process_for_each(tmp_path: Path, stack: str) -> None:
    ran = run(tmp_path, SPAWN, *stack_arguments(stack), "--topology", "2", "--", "python")
    assert sorted(ran.stdout.splitlines()) == RANKS, ran.stderr


def test_a_release_without_cuda_says_so(tmp_path: Path) -> None:
    """Otherwise its library would end the process."""
    ran = run(tmp_path, SPAWN, "--topology", "2", "--", sys.executable)
    assert ran.returncode == 1
    assert (
        "torch_xla 2.9.0 has no GPU: the last release with it is 2.8, as pytorch/xla#9603"
        in ran.stderr
    )


def test_its_cases_are_left_out_with_the_last_release(project: Project) -> None:
    """A case that starts it, or names it; one that only others are asked is no case of GPUs."""
    starts = (
        "@pytest.mark.lanes('virtual-*')\ndef test_starts(start_runtime): start_runtime(spmd=True)"
    )
    named = "@pytest.mark.lanes('virtual-gpu')\n@pytest.mark.frameworks('torch_xla', 'jax')"
    other = "@pytest.mark.lanes('virtual-*')\n@pytest.mark.frameworks('torch_tpu')"
    cases = f"{starts}\n{named}\ndef test_named(): import jax; jax.devices()\n"
    project.write("test_inner.py", f"{cases}{other}\ndef test_other(): pass")
    ran = project.run("--lane=virtual-gpu")
    assert ran.outcomes == {"test_named[virtual-gpu-4-jax]": "passed"}, ran.stdout
    why = "2.9.0 has no GPU: the last release with it is 2.8"
    assert report.read(ran.junit).left_out == {
        f"framework torch_xla: {why}": 2,
        "lane virtual-tpu: run with --lane virtual-tpu": 2,
    }
