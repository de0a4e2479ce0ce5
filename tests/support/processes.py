"""Whether processes are alive."""

from __future__ import annotations

import time
from pathlib import Path


def is_alive(pid: int) -> bool:
    try:
        return "(zombie)" not in Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False


def assert_gone(started: list[int], seconds: float = 2) -> None:
    """Fail unless all are gone within two seconds: what the kernel ends, ends soon after."""
    end = time.monotonic() + seconds
    while any(map(is_alive, started)) and time.monotonic() < end:
        time.sleep(0.02)
    assert [pid for pid in started if is_alive(pid)] == []
