"""A test passes only when all that it has queued has run, and it was given each error in it."""

from __future__ import annotations

import os
import random
import sys
from dataclasses import replace
from fnmatch import fnmatch

import pytest
from support.commands import run_program
from support.project import Project
from support.unread_jobs import HEADER, WORKER, UnreadJob, every_job

# Which jobs are run: launchers and patterns of names such as torch_xla_run_*, separated by commas,
# or "all"; otherwise a few.
EVERY = os.environ.get("XLA_HARNESS_UNREAD_JOBS", "").split(",")


def jobs() -> list[UnreadJob]:
    """The jobs that are run; without a wish, the same few each time."""
    if EVERY != [""]:
        return [job for job in every_job() if is_requested(job)]
    # Of JAX, which needs no time to start: torch_xla takes a minute where much else runs.
    jobs_of_jax = [job for job in every_job() if job.framework == "jax"]
    few = [UnreadJob("jax", "run one", "bounds", "exit")]
    for launcher in ("process", "ranks", "fork"):
        few += random.Random(7).sample([j for j in jobs_of_jax if j.launcher == launcher], 3)
    return few


def is_requested(job: UnreadJob) -> bool:
    """Return whether the environment asks for the job."""
    patterns = any(fnmatch(job.name, pattern) for pattern in EVERY)
    return patterns or bool({job.launcher, "all"} & set(EVERY))


CHOSEN = jobs()


@pytest.mark.parametrize("processes", sorted({j.processes_of for j in CHOSEN if j.is_test}))
def test_tests(project: Project, processes: str) -> None:
    """Each is green if and only if nothing goes wrong, or the test catches what does."""
    chosen = [job for job in CHOSEN if job.is_test and job.processes_of == processes]
    project.write("worker.py", WORKER)
    for launcher in {job.launcher for job in chosen}:
        tests = "".join(job.test for job in chosen if job.launcher == launcher)
        project.write(f"test_{launcher}.py", HEADER[launcher] + tests)
    divided = ["--topology=2", f"--processes={processes}"] if processes else []
    options = ("--lane=virtual-tpu", "--deadline=250", *divided)
    ran = replace(project, limit=3000).run(*options, PYTHONPATH=str(project.path))
    outcomes = {name.partition("[")[0]: outcome for name, outcome in ran.outcomes.items()}
    expected = {f"test_{job.name}": "passed" if job.is_right else "failed" for job in chosen}
    assert outcomes == expected, ran.stdout


@pytest.mark.parametrize("job", [j for j in CHOSEN if not j.is_test], ids=lambda job: job.name)
def test_scripts(project: Project, job: UnreadJob) -> None:
    """``xla-harness run`` says by its exit code what the script was not told."""
    project.write("worker.py", WORKER)
    each = ["--processes=chip"] if job.launcher == "run" else []
    starts = [sys.executable]
    if job.launcher == "torchrun":
        starts += ["-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    run = [sys.executable, "-m", "harness", "run", "--topology=2", *each, "--"]
    ran = run_program(*run, *starts, "worker.py", *job.arguments, cwd=project.path, timeout=500)
    assert (ran.returncode == 0) == job.is_right, ran.stdout + ran.stderr


def test_ranks_of_which_one_leaves_out_a_collective(project: Project) -> None:
    """No rank reads a value, so that none is given the error; torch_xla's wait after each step."""
    project.write("worker.py", WORKER)
    project.write(
        "test_ranks.py",
        HEADER["ranks"]
        + """\
import multiprocessing
pytestmark = [pytest.mark.lanes("virtual-tpu"), pytest.mark.topologies("4@chip")]

def train(name, number, queued):
    framework = FRAMEWORKS[name]()
    for step in range(5):
        if (number, step) != (3, 2):
            value = framework.add(4, 2)
        if name == "torch_xla":
            framework.wait(value)
    if name == "jax":  # a rank that is late would be given the error when it queues more
        queued.wait()

@pytest.mark.parametrize("name", FRAMEWORKS)
def test_train(topology, name):
    __import__(name)  # once for all ranks
    queued = multiprocessing.get_context("fork").Barrier(4)
    run_ranks(lambda number: train(name, number, queued), topology)
""",
    )
    ran = project.run("--lane=virtual-tpu", PYTHONPATH=str(project.path))
    assert list(ran.outcomes.values()) == ["failed", "failed"], ran.stdout
    for name in ran.cases:
        properties = ran.properties(name)
        assert properties["layer"] == "execution", ran.stdout
        assert properties["failure"].startswith("virtual TPU: the job can't go on: rank 3 ")


def test_a_second_error_in_the_same_words(project: Project) -> None:
    """What is given once does not stand for what fails later."""
    project.write("worker.py", WORKER)
    project.write(
        "test_again.py",
        HEADER["process"]
        + """\
def caught(value):
    try:
        np.asarray(value)
    except Exception:
        return value

def test_depends(): caught(Jax().run_kernel("bounds")) + 1
def test_again(): caught(Jax().run_kernel("bounds")); Jax().run_kernel("bounds")
""",
    )
    ran = project.run("--lane=virtual-tpu", PYTHONPATH=str(project.path))
    assert list(ran.outcomes.values()) == ["passed", "failed"], ran.stdout


def test_whose_outcome_it_is(project: Project) -> None:
    """What a marker expects, what a fixture does, what skips; and never the next test's."""
    project.write("worker.py", WORKER)
    project.write(
        "test_whose.py",
        """\
        from worker import *

        def start(fault="bounds"):
            return Jax().run_kernel(fault)

        @pytest.fixture
        def late():
            yield
            start()

        @pytest.mark.xfail(strict=True)
        def test_expected(): start()
        def test_fixture(late): start("control")
        def test_skipped(): start(); pytest.skip("after it")
        class TestParts(unittest.TestCase):
            def test_parts(self):
                for part in range(2):
                    with self.subTest(part=part): start("bounds" if part else "control")
            def test_right(self): start("control")
        """,
    )
    ran = project.run("--lane=virtual-tpu", PYTHONPATH=str(project.path))
    outcomes = {name.rpartition(".")[2]: outcome for name, outcome in ran.outcomes.items()}
    assert outcomes == {
        "test_expected": "expected failure",
        "test_fixture": "failed",
        "test_skipped": "failed",
        "test_parts": "failed",
        "test_right": "passed",
    }, ran.stdout
    assert ran.properties("test_fixture")["layer"] == "execution"
    assert ran.properties("test_fixture")["failure"].startswith("error in Pallas kernel shifted: ")
