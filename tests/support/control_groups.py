"""Control groups with a limit, of either version, into which a test moves processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_ROOT = Path("/sys/fs/cgroup")


@contextmanager
def control_group(controller: str, limits: tuple[str, str], value: int) -> Iterator[Path]:
    """Make a group whose file of ``limits``, named for the first or second version, has ``value``.

    Skips the test where the machine allows none. No process may be left in the group at the end.
    """
    first = _ROOT / controller
    root, limit = (first, limits[0]) if first.is_dir() else (_ROOT, limits[1])
    folder = root / f"xla-harness-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / limit).write_text(str(value), encoding="ascii")
    except OSError as error:
        if folder.is_dir():
            folder.rmdir()
        pytest.skip(f"this machine lets nobody make a control group of {controller}: {error}")
    yield folder
    folder.rmdir()
