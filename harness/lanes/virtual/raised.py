"""Describe the error that ended a process's own code while the process still waits for others."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import wrapt

from harness.lanes.virtual.sites import is_users

# Where pools of processes catch what a task has raised, by the module; the worker goes on.
_POOLS = {
    "concurrent.futures.process": "_ExceptionWithTraceback",
    "multiprocessing.pool": "ExceptionWithTraceback",
}
_DEEPEST = 12  # frames of a traceback that are told
_of_tasks: list[str] = []  # of the last one that has raised here
# What was told of, with the variables of its frames: those must not die in a thread of the plugin.
_kept: list[BaseException] = []


def note_in_pools() -> None:
    """Note what tasks of process pools raise from here on."""
    for module, name in _POOLS.items():
        wrapt.register_post_import_hook(_note_tasks(name), module)


def raised() -> str:
    """Return what ended the main program, or a thread or a task of this process, and its lines.

    That is an exception that nothing has caught, or that is on its way out; "" if there is none.
    """
    for error in (getattr(sys, "last_value", None), *_current()):
        if error is not None:
            _kept.append(error)
            return described(error)
    return "".join(_of_tasks)


def described(error: BaseException) -> str:
    """Return the exception's name and first line, and the user's lines that it came through."""
    while isinstance(error, SystemExit) and error.__context__ is not None:
        error = error.__context__  # a launcher has told of it and ends its process
    first = str(error).partition("\n")[0]
    frames = traceback.extract_tb(error.__traceback__)
    users = [frame for frame in frames if is_users(frame.filename)] or frames[-1:]
    name = type(error).__qualname__
    lines = traceback.format_list(users[-_DEEPEST:])
    return "".join([f"  raised {name}: {first}\n" if first else f"  raised {name}\n", *lines])


def _current() -> Iterator[BaseException | None]:
    """Yield the exception that each thread handles, as while a function that raised is left."""
    for error in sys._current_exceptions().values():
        # A tuple before Python 3.12.
        yield error[1] if isinstance(error, tuple) else error


def _note_tasks(name: str) -> Callable[[Any], None]:
    def accept(pool: Any) -> None:
        if hasattr(pool, name):
            wrapt.wrap_function_wrapper(pool, f"{name}.__init__", _note_task)

    return accept


def _note_task(
    init: Callable[..., None], _: object, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    error = args[0] if args else kwargs.get("exc")
    if isinstance(error, BaseException):
        _of_tasks[:] = [described(error)]
    init(*args, **kwargs)
