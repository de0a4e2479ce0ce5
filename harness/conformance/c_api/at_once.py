"""Several threads that call a plugin at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from harness.conformance.c_api.client import SECONDS
from harness.conformance.plugin_check import expect


def in_threads(count: int, work: Callable[[int], Any]) -> None:
    """Call ``work`` in that many threads; raises what the first of them raised."""
    errors = list[BaseException]()

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(n,), daemon=True) for n in range(count)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + SECONDS
    for thread in threads:
        thread.join(max(end - time.monotonic(), 0))
    expect(not any(t.is_alive() for t in threads), f"a thread has not ended within {SECONDS:.0f} s")
    if errors:
        raise errors[0]
