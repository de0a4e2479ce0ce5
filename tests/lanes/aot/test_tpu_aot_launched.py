"""What a plain test's other processes submit on the virtual TPU is compiled by libtpu as well."""

from __future__ import annotations

import json

import pytest
from support.project import Project, Ran

WORKER = """
import gc, sys

gc.disable()  # importing torch_xla is most of the work here, a quarter of it looks for garbage

def by_jax(size):
    import jax, numpy as np
    x = jax.ShapeDtypeStruct((size,), np.float32)
    jax.jit(lambda x: x * 3).lower(x).compile()

def by_torch_xla(index):
    import torch, torch_xla, torch_xla.core.xla_model as xm
    x = torch.ones(8, device=torch_xla.device())
    assert xm.all_reduce("sum", x).cpu()[0].item() == 4

if __name__ == "__main__":
    by_jax(int(sys.argv[1]))
"""
SUITE = """
import multiprocessing, os, subprocess, sys, worker

def run(size=16, **environment):
    command = [sys.executable, worker.__file__, str(size)]
    subprocess.run(command, check=True, env={**os.environ, **environment})

def test_command():
    run()

def test_two_commands_and_a_fork():
    run()
    run()
    forked = multiprocessing.get_context("fork").Process(target=worker.by_jax, args=(16,))
    forked.start()
    forked.join()
    worker.by_jax(32)

@pytest.mark.deadline(200)  # four processes import torch_xla
def test_torch_xla_launch():
    import torch_xla
    torch_xla.launch(worker.by_torch_xla)

def test_too_large():
    run(1 << 34)

def test_elsewhere():
    run()
    run(XLA_HARNESS_KEPT_PROGRAMS="")

def test_no_program():
    subprocess.run([sys.executable, "-c", "pass"], check=True)
"""


@pytest.fixture(scope="module")
def ran(shared_project: Project) -> Ran:
    (shared_project.path / "worker.py").write_text(WORKER)
    shared_project.write("test_inner.py", SUITE)
    return shared_project.run("--lane=tpu-aot", "--topology=v6e:2x2")


@pytest.mark.long
@pytest.mark.parametrize(
    ("test", "programs"), [("command", 1), ("two_commands_and_a_fork", 2), ("torch_xla_launch", 1)]
)
def test_programs_of_other_processes_are_compiled(ran: Ran, test: str, programs: int) -> None:
    assert ran.outcomes[f"test_{test}"] == "passed", ran.stdout
    assert len(json.loads(ran.properties(f"test_{test}")["aot_programs_compiled"])) == programs


@pytest.mark.long
def test_what_ranks_exchange_is_known(ran: Ran) -> None:
    (program,) = json.loads(ran.properties("test_torch_xla_launch")["aot_programs_compiled"])
    assert program["inside"] == ["all-reduce of 36 B over all"]  # torch_xla's token, too


def test_libtpus_refusal_fails_the_test(ran: Ran) -> None:
    (result,) = ran.cases["test_too_large"].result
    assert "RefusedError: RESOURCE_EXHAUSTED" in result.message


@pytest.mark.parametrize(
    ("test", "why"),
    [
        ("elsewhere", "what 1 of its processes submitted was not compiled with libtpu"),
        ("no_program", "it compiled nothing with libtpu"),
    ],
)
def test_without_them_there_is_no_evidence(ran: Ran, test: str, why: str) -> None:
    assert ran.outcomes[f"test_{test}"] == "skipped"
    assert ran.properties(f"test_{test}")["unproven"] == why
