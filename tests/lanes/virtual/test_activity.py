"""What a process does, seen from outside: it works, waits, is stopped, or is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from harness.lanes.virtual.executor.activity import Activity, ActivityState

_LOOKS = 4
SPIN = "while True: pass"
SLEEP = "import time; time.sleep(600)"
POLL = "import time\nwhile True: time.sleep(0.01)"
HEARTBEATS = f"import threading\nthreading.Thread(target=lambda: exec({POLL!r})).start()\n{SLEEP}"
THREAD = f"import threading\nthreading.Thread(target=lambda: exec({SPIN!r})).start()\n{SLEEP}"
CHILD = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {SPIN!r}])\n{SLEEP}"


@contextmanager
def process(code: str) -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    try:
        time.sleep(1.0)  # to start
        yield started
    finally:
        with suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()


def states(pid: int) -> Counter[ActivityState]:
    activity = Activity(pid)
    assert activity.look() == ActivityState.WORKS  # nothing to compare with
    counts: Counter[ActivityState] = Counter()
    for _ in range(_LOOKS):
        time.sleep(0.3)
        counts[activity.look()] += 1
    return counts


@pytest.mark.parametrize("load", [0, 4])
@pytest.mark.parametrize("code", [SPIN, THREAD, CHILD], ids=["main", "thread", "child"])
def test_who_computes_is_never_idle(code: str, load: int) -> None:
    others = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(load)]
    try:
        with process(code) as started:
            seen = states(started.pid)
    finally:
        for other in others:
            other.kill()
            other.wait()
    assert seen[ActivityState.IDLE] == 0
    assert seen[ActivityState.WORKS]


@pytest.mark.parametrize(
    "code", [SLEEP, POLL, HEARTBEATS], ids=["sleeps", "polls", "sends heartbeats"]
)
def test_who_waits_is_idle(code: str) -> None:
    with process(code) as started:
        assert states(started.pid)[ActivityState.WORKS] == 0


def test_who_is_stopped_or_gone() -> None:
    with process(SPIN) as started:
        activity = Activity(started.pid)
        activity.look()
        started.send_signal(signal.SIGSTOP)
        time.sleep(0.2)
        assert activity.look() == ActivityState.STOPPED
        started.kill()
        started.wait()
        assert activity.look() == ActivityState.GONE
