"""Stand-in for ``harness.job.ranks``: the script is started once for each rank, as by torchrun."""

from __future__ import annotations

import os
import pickle
import signal
import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from harness.model.topology import Topology
from harness.repro.standins.ranks import RankError, described

_CALLS = count()


def run_ranks(fn: Callable[[int], Any], topology: Topology, *, deadline: float = 50) -> list[Any]:
    """Return [fn(0), fn(1), ...]: a fork of this process computes its own, the others theirs."""
    del topology  # the launcher has divided it
    number, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    job = f"ranks-{os.environ['TORCHELASTIC_RUN_ID']}-{next(_CALLS)}"
    folder, end = Path(tempfile.gettempdir(), job), time.monotonic() + deadline
    folder.mkdir(exist_ok=True)
    files = [folder / f"{each}" for each in range(ranks)]
    who = f"rank {number} of {ranks}"
    child = os.fork()
    if not child:
        try:
            value, failure = fn(number), ""
        except BaseException as error:
            value, failure = None, f"{who} raised {described(error)}"
        _write(files[number], time.monotonic(), value, failure)
        os._exit(0)
    while not all(file.exists() for file in files):
        ended, status = os.waitpid(child, os.WNOHANG) if child else (0, 0)
        if ended:
            child = 0
            if not files[number].exists():
                why = f"{who} ended with {os.waitstatus_to_exitcode(status)}"
                _write(files[number], 0.0, None, why)
        if time.monotonic() > end:
            if child:
                os.kill(child, signal.SIGKILL)
            raise RankError(f"{who} waited for {deadline:g} s")
        time.sleep(0.05)
    answers = [pickle.loads(file.read_bytes()) for file in files]  # noqa: S301
    if failed := [(when, failure) for when, _, failure in answers if failure]:
        raise RankError(min(failed)[1])
    return [value for _, value, _ in answers]


def _write(file: Path, *answer: object) -> None:
    part = file.with_suffix(".part")
    part.write_bytes(pickle.dumps(answer))
    part.replace(file)
