"""Runs random programs of DTensor in the ranks of a job, in the executor."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from io import FileIO
from typing import IO, Any, NoReturn

from harness.fuzz.dtensor_text import RANKS
from harness.fuzz.endings import described, different, first_line
from harness.isolation import libc
from harness.job.ranks import run_ranks
from harness.model.topology import Topology

SPOILING = ()  # endings after which a process may compute other programs wrongly
OPTIMIZES = False
_PATIENCE = 1.5  # seconds that ranks have after another one has raised an error
_PROGRAMS = 200  # after which a job has too many process groups
_LIMIT = 1e6  # seconds of a job; the executor limits each program
_ADVICE = "redistribut"  # DTensor tells to redistribute an operand that it does not divide so
_KILLED = re.compile(r"was killed by (SIG\w+)")
_DEATH = 128  # plus a signal is the exit code of a job of which a rank died by it


class _Job:
    """A job's ranks, which wait for programs."""

    def __init__(self) -> None:
        """Start them, and wait until they have met."""
        requests, answers = ([os.pipe() for _ in range(RANKS)] for _ in range(2))
        parent = os.getpid()
        self._pid = os.fork()
        if not self._pid:
            _be_the_job([read for read, _ in requests], [write for _, write in answers], parent)
        self._requests = [os.fdopen(write, "w", buffering=1) for _, write in requests]
        self._answers = [FileIO(read) for read, _ in answers]
        for read, _ in requests:
            os.close(read)
        for _, write in answers:
            os.close(write)
        self.programs = 0
        for pipe in self._answers:
            if not pipe.readline():
                self._died()

    def run(self, text: str) -> list[Mapping[str, Any]]:
        """Return how the program ended in each rank that could end.

        If a rank dies, this process ends by the same signal.
        """
        self.programs += 1
        line = json.dumps(text) + "\n"
        try:
            for request in self._requests:
                request.write(line)
        except BrokenPipeError:
            self._died()
        endings: list[Mapping[str, Any]] = []
        waiting, until = [*self._answers], float("inf")
        while waiting and (ready := _ready(waiting, until)):
            for pipe in ready:
                waiting.remove(pipe)
                if not (answer := pipe.readline()):
                    self._died()
                endings.append(json.loads(answer))
                if endings[-1]["kind"] != "right":
                    until = min(until, time.monotonic() + _PATIENCE)
        return endings

    def end(self) -> None:
        """End the ranks."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        for pipe in (*self._requests, *self._answers):
            pipe.close()

    def _died(self) -> NoReturn:
        _, status = os.waitpid(self._pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if code > _DEATH:
            os.kill(os.getpid(), code - _DEATH)
        raise RuntimeError("the job has ended")


_jobs: list[_Job] = []  # the one that runs, if there is one


def start() -> Mapping[str, Any]:
    """Start the ranks; return their number, and the version."""
    import torch

    get_ready(0)
    return {"devices": RANKS, "gspmd": False, "version": torch.__version__}


def get_ready(number: int) -> None:
    """Start ranks if there are none."""
    del number
    if not _jobs:
        _jobs.append(_Job())


def ending(program: Mapping[str, Any], **_: bool) -> Mapping[str, Any]:
    """Run a program in all ranks; return how it ended. Nothing is lowered as a whole."""
    if program["is_lowered_only"]:
        return described("right", "")
    job = _jobs[-1]
    endings = job.run(program["text"])
    first = next((each for each in endings if each["kind"] != "right"), endings[0])
    # After an error of TorchTPU's runtime, the next program may fail of it.
    is_spoiled = first["kind"] == "failed" and _is_on_tpus()
    if is_spoiled or len(endings) < RANKS or job.programs > _PROGRAMS:
        _jobs.pop().end()
    return first


def _is_on_tpus() -> bool:
    return sys.argv[1] == "torch_tpu"  # in the environment of a stack there may be both


def _ready(pipes: Sequence[FileIO], until: float) -> Sequence[FileIO]:
    left = None if until == float("inf") else max(until - time.monotonic(), 0)
    return select.select(pipes, [], [], left)[0]


def _be_the_job(requests: Sequence[int], answers: Sequence[int], parent: int) -> NoReturn:
    libc.die_with_parent(parent)

    def rank(number: int) -> None:
        with os.fdopen(requests[number]) as lines, os.fdopen(answers[number], "w") as out:
            _answer(lines, out)

    code = os.EX_SOFTWARE
    try:
        run_ranks(rank, Topology.parse(f"{RANKS}@chip"), deadline=_LIMIT)
    except Exception as error:
        sys.stderr.write(f"{error}\n")
        if match := _KILLED.search(str(error)):
            code = _DEATH + signal.Signals[match[1]]
    finally:
        os._exit(code)


def _answer(lines: IO[str], answers: IO[str]) -> None:
    """Run one program after the other, in a rank."""
    import torch.distributed as dist

    dist.init_process_group("tpu" if _is_on_tpus() else "gloo")
    answers.write("ready\n")
    answers.flush()
    for line in lines:
        answers.write(json.dumps(_ending(json.loads(line))) + "\n")
        answers.flush()


def _ending(text: str) -> Mapping[str, Any]:
    namespace: dict[str, Any] = {}
    try:
        exec(compile(text, "program", "exec"), namespace)  # noqa: S102 - it is ours
        results = [_array(result) for result in namespace["program"]()]
    except Exception as error:
        # DTensor's rule for an operator says what is wrong; the error around it names the operator.
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        is_refused = isinstance(cause, NotImplementedError) or _ADVICE in str(cause)
        return described("unusable" if is_refused else "failed", first_line(cause))
    detail = different(results, namespace["EXPECTED"])
    return described("wrong" if detail else "right", detail)


def _array(tensor: Any) -> Any:
    import torch

    return tensor.to(torch.float32).numpy() if tensor.dtype.is_floating_point else tensor.numpy()
