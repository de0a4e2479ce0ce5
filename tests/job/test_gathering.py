"""What is said of processes that wait in a rendezvous of their framework."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from harness.job.gathering import Gathering, MeetingPlace, explanation, rendezvous
from harness.messages.ports import free_port

HERE = MeetingPlace("jax.distributed.initialize", 4)


@pytest.mark.parametrize(
    ("waits", "beginning"),
    [
        ({0: None, 1: None}, ""),  # whatever they wait for
        ({0: HERE, 1: HERE, 2: HERE, 3: HERE}, ""),
        ({0: HERE, 1: None, 2: HERE, 3: HERE}, "rank 1 does nothing, for 5 s, and ranks 0, 2, 3"),
        (dict.fromkeys(range(8), HERE), "8 processes were started, and ranks 0-7 wait in "),
        ({0: HERE, 1: None}, "2 processes were started, and rank 0 waits in jax.distributed.init"),
    ],
)
def test_explanation(waits: dict[int, MeetingPlace | None], beginning: str) -> None:
    text = explanation(waits, 5)
    assert text.startswith(beginning)
    assert bool(text) == bool(beginning)


def test_store_of_torch_waits_for_the_count_of_the_script() -> None:
    code = f"""
import torch.distributed as dist
dist.init_process_group("gloo", "tcp://localhost:{free_port()}", rank=0, world_size=3)
"""
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        try:
            end = time.monotonic() + 60
            while (waiting := rendezvous(process.pid)) is None and time.monotonic() < end:
                time.sleep(0.5)
        finally:
            process.kill()
    assert waiting == MeetingPlace("torch.distributed.init_process_group", 3)


def test_those_that_work_or_wait_elsewhere_are_not_late() -> None:
    busy = [sys.executable, "-c", "while True: pass"]
    idle = [sys.executable, "-c", "import time; time.sleep(600)"]
    with subprocess.Popen(busy) as first, subprocess.Popen(idle) as second:
        try:
            gathering = Gathering(1)
            for _ in range(6):
                assert gathering.why_late({0: first.pid, 1: second.pid}) == ""
                time.sleep(0.3)
        finally:
            first.kill()
            second.kill()
