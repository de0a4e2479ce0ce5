"""Python's collector of garbage, while much is made that stays until the process ends."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Look for no garbage inside."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@contextmanager
def importing() -> Iterator[None]:
    """Look for no garbage inside, and never in what was made there.

    Modules are no garbage. To look for it among those of torch_xla takes a quarter of the time of
    their import, and as long again when the process ends. A collection in a forked process would
    also write to, and so copy, every page that it shares.
    """
    with uncollected():
        yield
        gc.freeze()
