"""What runs in a pod: pytest as a process, its report and log kept, and a bounded wait."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

BODY = """
import os, pytest, time
pytestmark = pytest.mark.lanes("cpu")
def test_first(): print("said")
@pytest.mark.skipif("SLOW" not in os.environ, reason="quick")
def test_slow(): time.sleep(60)
def test_bad(): assert "BAD" not in os.environ
"""


class Worker:
    """A worker that is running."""

    def __init__(self, folder: Path, wait: int, **environment: str) -> None:
        (folder / "test_inner.py").write_text(BODY)
        (folder / "pytest.ini").write_text("[pytest]\nxla_preload =\n")
        self.out = folder / "out"
        command = [sys.executable, "-m", "harness", "ci", "jobset", "work", "--out", "out"]
        self.process = subprocess.Popen(
            [*command, "--wait", str(wait), "--", "-v", "test_inner.py"],
            cwd=folder,
            env={"PATH": "/usr/bin:/bin", **environment},
            stdout=subprocess.PIPE,
            text=True,
        )

    def await_file(self, name: str, text: str = "") -> str:
        end = time.monotonic() + 60
        while not (self.out / name).exists() or text not in (self.out / name).read_text():
            assert time.monotonic() < end
            time.sleep(0.02)
        return (self.out / name).read_text()


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[list[Worker]]:
    started: list[Worker] = []
    yield started
    for worker in started:
        worker.process.kill()
        worker.process.wait()


def test_it_waits_until_it_is_collected(tmp_path: Path, workers: list[Worker]) -> None:
    workers.append(worker := Worker(tmp_path, 600, BAD="1"))
    assert json.loads(worker.await_file("done.json")) == {"exit": 1}
    assert 'outcome" value="failed"' in worker.await_file("report.xml")
    with pytest.raises(subprocess.TimeoutExpired):
        worker.process.wait(timeout=1)
    (worker.out / "collected").touch()
    stdout, _ = worker.process.communicate(timeout=100)
    assert worker.process.returncode == 1
    assert stdout == worker.await_file("log.txt")
    assert "test_first" in stdout
    assert not (worker.out / "tmp").exists()


def test_it_does_not_wait_for_ever(tmp_path: Path, workers: list[Worker]) -> None:
    workers.append(worker := Worker(tmp_path, 1))
    assert worker.process.wait(timeout=100) == 0


def test_told_to_end_it_reports_what_ran(tmp_path: Path, workers: list[Worker]) -> None:
    """As a worker is when another one's pod has failed; it still waits to be collected."""
    workers.append(worker := Worker(tmp_path, 600, SLOW="1"))
    worker.await_file("log.txt", "test_first")
    worker.await_file("log.txt", "PASSED")
    time.sleep(0.5)  # in the slow one
    worker.process.send_signal(signal.SIGTERM)
    assert json.loads(worker.await_file("done.json")) == {"exit": 2}
    text = worker.await_file("report.xml")
    assert "test_first" in text
    assert "test_bad" not in text
    worker.process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        worker.process.wait(timeout=1)
    (worker.out / "collected").touch()
    assert worker.process.wait(timeout=100) == 2
