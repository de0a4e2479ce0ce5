"""Variables of launchers that say which job this process is of."""

from __future__ import annotations

import fcntl
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness.errors import BadInputError
from harness.job.launched import LaunchedJob, launched_job
from harness.scratch import remove_abandoned

MPIRUN = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_NAMESPACE": "prterun-1@1",
}


def test_job_of_mpirun() -> None:
    job = launched_job(MPIRUN)
    assert job is not None
    assert (job.launcher, job.number, job.count, job.is_here) == ("mpirun", 3, 4, True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"PMIX_NAMESPACE": None}, "variable PMIX_NAMESPACE is not set"),
        (
            {"OMPI_COMM_WORLD_SIZE": "four"},
            "variable OMPI_COMM_WORLD_SIZE='four': expected a number",
        ),
        ({"OMPI_COMM_WORLD_RANK": ""}, "variable OMPI_COMM_WORLD_RANK='': expected a number"),
    ],
)
def test_incomplete_variables(change: dict[str, str | None], words: str) -> None:
    variables = {name: text for name, text in {**MPIRUN, **change}.items() if text is not None}
    with pytest.raises(BadInputError, match=words):
        launched_job(variables)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the empty folder in which processes of a job meet."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


MEET = """
import os, signal
from harness.job.launched import LaunchedJob
LaunchedJob("mpirun", "job", 0, 1, True).meet([{}])
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_file_of_a_killed_job_is_removed(folder: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", MEET], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(list(folder.iterdir())) == 1
    remove_abandoned()
    assert not list(folder.iterdir())


def test_process_that_comes_while_the_file_is_removed(folder: Path) -> None:
    job = LaunchedJob("mpirun", "job", 0, 1, is_here=True)
    _, leave = job.meet([{}])
    (path,) = folder.iterdir()
    leave(0)
    with ThreadPoolExecutor(1) as threads, path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        coming = threads.submit(job.meet, [{"rank": "0"}])
        time.sleep(0.3)  # until it waits for the lock
        path.unlink()
        file.close()
        variables, leave = coming.result()
    assert variables == [{"rank": "0"}]
    leave(0)
