"""Work of a pod: run pytest with its report and log in one folder, then wait a bounded time until
both are collected. A pod that has ended can't be read, and one that fails ends all others.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from harness import files
from harness.lanes.event_file import FOLDER_VARIABLE

REPORT, LOG, EVENTS, DONE, COLLECTED = "report.xml", "log.txt", "events", "done.json", "collected"
_POLL = 0.2  # seconds


def work(arguments: Sequence[str], out: Path, wait: float) -> int:
    """Run pytest with ``arguments``, write all to ``out``, and wait at most ``wait`` seconds.

    Returns pytest's exit code, or 128 and the signal that ended it, as a shell does. SIGTERM, which
    Kubernetes sends first, lets pytest end with a report of what ran so far.
    """
    scratch = out / "tmp"
    scratch.mkdir(parents=True, exist_ok=True)
    for old in (DONE, COLLECTED, REPORT):
        (out / old).unlink(missing_ok=True)
    (out / EVENTS).mkdir(exist_ok=True)
    own = {"TMPDIR": str(scratch), "PYTHONUNBUFFERED": "1", FOLDER_VARIABLE: str(out / EVENTS)}
    environment = {**os.environ, **own}
    command = [sys.executable, "-m", "pytest", *arguments, f"--junitxml={out / REPORT}"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
    )

    def interrupt(number: int, frame: FrameType | None) -> None:
        del number, frame
        if process.poll() is None:
            process.send_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        _copy_output(process, out / LOG)
        code = process.wait()
        shutil.rmtree(scratch, ignore_errors=True)
        if code >= 0:  # else they say what the cases of a killed pytest had done
            shutil.rmtree(out / EVENTS, ignore_errors=True)
        files.write({out / DONE: json.dumps({"exit": code}) + "\n"})
        _await(out / COLLECTED, wait)
    finally:
        signal.signal(signal.SIGTERM, before)
    return code if code >= 0 else 128 - code


def _copy_output(process: subprocess.Popen[bytes], log: Path) -> None:
    """Copy output to the log and to stdout, where kubectl finds it when the pod's files are gone.

    A thread does so, since a process that pytest left behind may hold the pipe open forever.
    """
    assert process.stdout is not None
    stream = process.stdout

    def copy() -> None:
        with log.open("wb", buffering=0) as file:
            for line in stream:
                file.write(line)
                sys.stdout.buffer.write(line)
                sys.stdout.buffer.flush()

    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    process.wait()
    thread.join(timeout=5)


def _await(path: Path, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not path.exists() and time.monotonic() < end:
        time.sleep(_POLL)
