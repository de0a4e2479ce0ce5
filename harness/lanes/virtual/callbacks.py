"""Functions in this process that the plugin calls when a program is compiled."""

from __future__ import annotations

import ctypes
import gc
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any

from harness.lanes.virtual import host_callbacks
from harness.lanes.virtual.pallas import CannotInterpretError, interpret

# Names a module whose ``plant`` changes programs; in the environment, for processes started later.
PLANTER_VARIABLE = "XLA_HARNESS_PLANTER"
STAND_IN_VARIABLE = "VIRTUAL_TPU_STAND_IN"  # set where libtpu is asked as well


class _Changed(ctypes.Structure):
    """``Changed`` in ``plugin/compile/replacements.c``."""

    _fields_ = (
        ("format", ctypes.c_char_p),
        ("code", ctypes.c_char_p),
        ("error", ctypes.c_char_p),
        ("names", ctypes.c_char_p),
        ("modes", ctypes.c_char_p),
        ("code_size", ctypes.c_size_t),
    )


_CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.POINTER(_Changed),
)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep cyclic garbage for later: TorchTPU compiles in a thread in which no tensor may die."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


# What the plugin still reads after the callback has returned, by thread. Not a threading.local:
# TorchTPU compiles in threads that Python did not start, whose locals end with the callback.
_alive: dict[int, tuple[bytes, ...]] = {}


def _keep(*texts: bytes) -> tuple[bytes, ...]:
    _alive[threading.get_ident()] = texts
    return texts


def _callback(change: Callable[[str, bytes], tuple[bytes, list[tuple[str, str]]]]) -> Any:
    """Return a C function that calls ``change`` with a program's format and code.

    ``change`` returns the new code, and the name and mode of each thing that it has replaced.
    """

    def answer(form: int, form_size: int, code: int, code_size: int, out: Any) -> int:
        answer = out.contents
        try:
            program = ctypes.string_at(code, code_size)
            with _no_collection():
                changed, names = change(ctypes.string_at(form, form_size).decode(), program)
        except CannotInterpretError as error:
            answer.error = _keep(str(error).encode())[0]
            return 0
        except BaseException as error:
            answer.error = _keep(f"{change.__name__} failed: {error!r}".encode())[0]
            return 0
        answer.format = b"hlo"
        columns = zip(*names, strict=True) if names else ((), ())
        lines = ("\n".join(column).encode() for column in columns)
        answer.code, answer.names, answer.modes = _keep(changed, *lines)
        answer.code_size = len(changed)
        return bool(names)

    return _CALLBACK(answer)


def rewrite(form: str, program: bytes) -> tuple[bytes, list[tuple[str, str]]]:
    """Call ``rewrites.rewrite``, imported late: NumPy and ml_dtypes may be missing without JAX."""
    from harness.lanes.virtual import rewrites

    changed, names = rewrites.rewrite(form, program)
    return changed, [(name, "") for name in names]


def stand_in(form: str, program: bytes) -> tuple[bytes, list[tuple[str, str]]]:
    """Call ``stand_in.stand_in``, imported late: it needs JAX."""
    from harness.lanes.virtual import stand_in

    return stand_in.stand_in(form, program)


_interpret = _callback(interpret)
_rewrite = _callback(rewrite)
_stand_in = _callback(stand_in)


@cache
def _planter(named: str) -> Any:
    return _callback(import_module(named).plant)


def attach(library: ctypes.CDLL) -> None:
    """Have the plugin ask this process for what the CPU's compiler can't do with its programs."""
    library.virtual_tpu_set_interpreter(_interpret)
    library.virtual_tpu_set_rewriter(_rewrite)
    host_callbacks.attach(library)
    if os.environ.get(STAND_IN_VARIABLE):
        library.virtual_tpu_set_stand_in(_stand_in)
    if named := os.environ.get(PLANTER_VARIABLE):
        library.virtual_tpu_set_planter(_planter(named))
