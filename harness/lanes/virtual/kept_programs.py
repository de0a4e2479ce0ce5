"""The programs that a test's other processes submit, for the test's own process to compile.

Whatever starts them, as a launcher does, they inherit the environment, or are forked from it.
"""

from __future__ import annotations

import os
import pickle
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.lanes.events import CASE_FOLDER
from harness.lanes.virtual.submitted import Submitted, listen, listening, optimized

# Names the folder that they are kept in, while a test runs whose programs libtpu compiles.
VARIABLE = "XLA_HARNESS_KEPT_PROGRAMS"
_SUFFIX = ".program"


@dataclass(frozen=True)
class Kept:
    """A program, the process that submitted it, and what XLA's CPU compiler made of it, or b""."""

    process: int
    program: Submitted
    compiled_here: bytes


@contextmanager
def keeping() -> Iterator[Path]:
    """Within it, the folder of what the processes submit that this one starts or forks."""
    with tempfile.TemporaryDirectory(dir=os.environ.get(CASE_FOLDER)) as name:
        folder, own = Path(name), os.getpid()

        def note(program: Submitted, number: int) -> None:
            if os.getpid() != own:
                _keep(folder, program, number)

        os.environ[VARIABLE] = name
        try:
            with listening(note):
                yield folder
        finally:
            os.environ.pop(VARIABLE, None)


def keep_here() -> None:
    """Keep what this process submits from now on, if a test has started it that asks for that."""
    if name := os.environ.get(VARIABLE):
        folder = Path(name)
        listen(lambda program, number: _keep(folder, program, number))


def _keep(folder: Path, program: Submitted, number: int) -> None:
    """Write a program; raise OSError if the disk is full, or the test has ended."""
    kept = Kept(os.getpid(), program, optimized(number) if number else b"")
    descriptor, unfinished = tempfile.mkstemp(dir=folder)
    with os.fdopen(descriptor, "wb") as file:
        pickle.dump(kept, file)
    Path(unfinished).rename(f"{unfinished}{_SUFFIX}")


def kept_in(folder: Path) -> list[Kept]:
    """Return what is kept there, in the order in which it was submitted."""
    files = sorted(folder.glob(f"*{_SUFFIX}"), key=lambda file: file.stat().st_mtime_ns)
    return [pickle.loads(file.read_bytes()) for file in files]  # noqa: S301 - processes of this test


def not_kept(kept: list[Kept], compiling: list[int]) -> list[int]:
    """Return the processes that have submitted more programs than were kept of them.

    Args:
        kept: the programs that are there.
        compiling: for each program that any process but the test's own has submitted, the process.
    """
    missing = Counter(compiling)
    missing.subtract(each.process for each in kept)
    return [process for process, count in missing.items() if count > 0]
