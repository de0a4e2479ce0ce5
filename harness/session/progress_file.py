"""Report a run's progress in a file, for the process that started the run."""

from __future__ import annotations

import os
from pathlib import Path

PROGRESS_FILE = "XLA_HARNESS_PROGRESS"  # names the file


class ProgressFile:
    """Writes the counts of tests into one line, which each write replaces at once."""

    def __init__(self) -> None:
        path = os.environ.pop(PROGRESS_FILE, "")  # a case's own pytest is another run
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666) if path else None

    def write(self, done: int, total: int) -> None:
        """Say that so many of ``total`` tests are done."""
        if self._descriptor is not None:
            os.pwrite(self._descriptor, f"{done:>9} {total:>9}".encode(), 0)


def read_progress(path: Path) -> tuple[int, int] | None:
    """Return how many tests are done, and of how many; None before the first."""
    try:
        done, total = map(int, path.read_text(encoding="ascii").split())
    except (OSError, ValueError):
        return None
    return done, total
