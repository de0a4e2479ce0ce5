"""Ends a run with exit code 2: at once, or below the summary of what has run."""

from __future__ import annotations

import pytest

UNWRITTEN = pytest.StashKey[list[str]]()  # a line for each file that could not be written


def stop(session: pytest.Session, message: str) -> None:
    """End the run at once with ``message``."""
    message = f"xla-harness: {message}"
    if not hasattr(session.config, "workeroutput"):
        pytest.exit(message, returncode=2)
    session.shouldstop = message  # pytest-xdist's controller prints it and ends with 2


def refuse(session: pytest.Session, line: str) -> None:
    """Let the run end with this line below its summary."""
    session.config.stash.setdefault(UNWRITTEN, []).append(line)
    session.exitstatus = pytest.ExitCode.INTERRUPTED
