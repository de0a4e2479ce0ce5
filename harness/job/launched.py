"""A job of which ``srun`` or ``mpirun`` starts each process by its own ``xla-harness run``."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path

from harness.errors import BadInputError
from harness.model.topology import ONE, PROCESSES, Topology
from harness.scratch import PREFIX, is_at

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_AFTER_FAILURE = 3.0  # seconds for the others to fail of it too
_LOOK = 0.05


@dataclass(frozen=True)
class LaunchedJob:
    """Job of ``count`` processes that a launcher has started, of which this is ``number``.

    Attributes:
        launcher: the program that started them.
        name: what only the processes of this job know.
        is_here: whether all of them are on this machine.
    """

    launcher: str
    name: str
    number: int
    count: int
    is_here: bool

    def divide(self, topology: Topology, processes: str | None) -> Topology:
        """Return the topology with a process for each of what there are as many of.

        Raises BadInputError if there is no such unit, or the processes could not meet.
        """
        units = [processes] if processes else PROCESSES
        divided = [topology.divided(unit) for unit in units]
        fitting = [each for each in divided if each.process_count == self.count]
        if not fitting:
            counts = ", ".join(f"{each.process_count} for {each}" for each in divided)
            raise BadInputError(
                f"{self.launcher} has started {self.count} processes: expected {counts}; with "
                f"--processes {ONE}, each has all devices and works alone"
            )
        if not self.is_here:
            raise BadInputError(
                f"{self.launcher} has started processes on several machines: the ranks of a job "
                f"on virtual devices meet in the memory of one. Start all {self.count} on one "
                f"machine; topology {topology} says how many the virtual devices are on"
            )
        return fitting[0]

    def meet(
        self, variables: Sequence[dict[str, str]]
    ) -> tuple[list[dict[str, str]], Callable[[int], None]]:
        """Return this process's variables of the job, as the first process has chosen them.

        Args:
            variables: of each process, to be chosen if this is the first one.

        Returns:
            Those of this process alone, and what to call with its command's exit code.
        """
        digest = sha256(self.name.encode()).hexdigest()[:16]
        path = Path(tempfile.gettempdir(), f"{PREFIX}{os.geteuid()}-{digest}")
        text = json.dumps(variables).encode()
        file = _joined(path, text)
        while not is_at(file, path):  # somebody took it for one of a job that has ended
            os.close(file)
            file = _joined(path, text)
        chosen = json.loads(os.pread(file, os.fstat(file).st_size, 0))
        return [chosen[self.number]], partial(_leave, file, path)


def _joined(path: Path, text: bytes) -> int:
    """Return a job's file, open and with a lock that others share; the first one writes ``text``.

    Raises BadInputError if it is not this user's.
    """
    try:
        file = os.open(path, _FLAGS, 0o600)
    except OSError as error:
        raise BadInputError(f"{path}: expected a file of this job: {error}") from error
    if os.fstat(file).st_uid != os.geteuid():
        raise BadInputError(f"{path}: expected a file of this user")
    with suppress(BlockingIOError):  # unless others are there, who keep what they have read
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(file, 0)
        os.pwrite(file, text, 0)
    fcntl.flock(file, fcntl.LOCK_SH)
    return file


def _leave(file: int, path: Path, code: int) -> None:
    """Wait for the others' commands: what they run on may be a process of this one's.

    Args:
        file: which each process of the job keeps locked until its command has ended.
        path: the file's.
        code: of this one's command; if that has failed, they have a short time.
    """
    end = time.monotonic() + _AFTER_FAILURE
    fcntl.flock(file, fcntl.LOCK_UN)
    while not code or time.monotonic() < end:
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
            break
        time.sleep(_LOOK)
    os.close(file)


def launched_job(variables: Mapping[str, str]) -> LaunchedJob | None:
    """Return the job of which Open MPI or Slurm has started this process; None without any.

    mpirun comes first: Slurm may have started it. Raises BadInputError for variables of one of them
    that are incomplete or no numbers.

    https://docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html
    https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES
    """
    if (count := _number(variables, "OMPI_COMM_WORLD_SIZE", "1")) > 1:
        number, here = (
            _number(variables, f"OMPI_COMM_WORLD_{name}") for name in ("RANK", "LOCAL_SIZE")
        )
        name = _text(variables, "PMIX_NAMESPACE")
        return LaunchedJob("mpirun", name, number, count, here == count)
    if (count := _number(variables, "SLURM_STEP_NUM_TASKS", "1")) > 1:
        name = ".".join(_text(variables, f"SLURM_{each}") for each in ("JOB_ID", "STEP_ID"))
        number, nodes = (
            _number(variables, f"SLURM_{each}") for each in ("PROCID", "STEP_NUM_NODES")
        )
        return LaunchedJob("srun", name, number, count, nodes == 1)
    return None


def _text(variables: Mapping[str, str], name: str, otherwise: str | None = None) -> str:
    """Return a launcher's variable; raise BadInputError if it is not set and must be."""
    text = variables.get(name, otherwise)
    if text is None:
        raise BadInputError(f"variable {name} is not set: expected what the job's launcher sets")
    return text


def _number(variables: Mapping[str, str], name: str, otherwise: str | None = None) -> int:
    """Return a launcher's variable that is a number, as ``_text`` does."""
    text = _text(variables, name, otherwise)
    if not (text.isascii() and text.isdigit()):
        raise BadInputError(f"variable {name}={text!r}: expected a number")
    return int(text)
