"""Ends a case's process as an interpreter ends: waits for its threads and runs its exit hooks."""

from __future__ import annotations

import atexit
import sys
import threading
import traceback
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


def forget_hooks() -> None:
    """Forget, in a forked process, the exit hooks of its parent, which run there."""
    atexit._clear()
    finalizers = weakref.finalize
    for finalizer in list(finalizers._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False
    finalizers._registered_with_atexit = False  # type: ignore[attr-defined]


def shut_down() -> None:
    """Wait for all threads that are no daemons, and run the exit hooks, the last one first.

    Warns of what they raise, as pytest does of threads and finalizers. Raises such a warning if
    the test's filters make it an error.
    """
    with _raised() as warnings_raised:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    for warning in warnings_raised:
        warnings.warn(warning, stacklevel=1)


@contextmanager
def _raised() -> Iterator[list[Warning]]:
    """Collect, as warnings, the exceptions inside that nobody can catch."""
    warnings_raised: list[Warning] = []

    def in_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_type is not SystemExit and args.exc_value is not None:
            name = args.thread.name if args.thread else "<unknown>"
            text = f"Exception in thread {name}\n\n{_formatted(args.exc_value)}"
            warnings_raised.append(pytest.PytestUnhandledThreadExceptionWarning(text))

    def in_hook(args: sys.UnraisableHookArgs) -> None:
        if args.exc_value is not None:
            origin = args.err_msg or "Exception ignored in"
            text = f"{origin}: {args.object!r}\n\n{_formatted(args.exc_value)}"
            warnings_raised.append(pytest.PytestUnraisableExceptionWarning(text))

    before = threading.excepthook, sys.unraisablehook
    threading.excepthook, sys.unraisablehook = in_thread, in_hook
    try:
        yield warnings_raised
    finally:
        threading.excepthook, sys.unraisablehook = before


def _formatted(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))
