"""The programs that frameworks submit to the virtual TPU's compiler, as they submit them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.lanes.events import VARIABLE, EventLog
from harness.lanes.virtual import library


@dataclass(frozen=True)
class Submitted:
    """A program, and what it was to be compiled with.

    ``form`` is ``mlir`` for a StableHLO portable artifact or MLIR bytecode, ``hlo`` for a
    serialised HloModuleProto; ``options`` is a serialised CompileOptionsProto.
    """

    form: str
    code: bytes
    options: bytes


class _Program(ctypes.Structure):
    """``PJRT_Program`` of xla/pjrt/c/pjrt_c_api.h."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("code", ctypes.c_void_p),
        ("code_size", ctypes.c_size_t),
        ("form", ctypes.c_void_p),
        ("form_size", ctypes.c_size_t),
    )


_LISTENER = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(_Program), ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint
)


Ran = Callable[[Callable[[], object]], list[Submitted]]
Note = Callable[[Submitted, int], None]


@contextmanager
def recording() -> Iterator[Ran]:
    """Within it, a function that calls another one and returns what has run meanwhile.

    That is each program as often as this process executed it, in order, and then those that it
    submitted and XLA's CPU compiler refused. Nothing may be queued before or after the call. A
    program that was submitted before the recording, or by another process, raises RuntimeError.
    """
    compiled: dict[int, Submitted] = {}
    refused: list[Submitted] = []

    def note(program: Submitted, number: int) -> None:
        if number:
            compiled[number] = program
        else:
            refused.append(program)

    def ran(step: Callable[[], object]) -> list[Submitted]:
        log, before = EventLog(Path(os.environ[VARIABLE])), len(refused)
        step()
        executed = [e.program for e in log.read().of("execute") if e.process == os.getpid()]
        if unknown := set(executed) - compiled.keys():
            raise RuntimeError(f"{len(unknown)} of the programs that ran were not submitted here")
        return [compiled[number] for number in executed] + refused[before:]

    with listening(note):
        yield ran


@contextmanager
def submissions(
    wanted: Callable[[Submitted], bool] = lambda _: False,
) -> Iterator[list[tuple[Submitted, bytes]]]:
    """Within it, a list that grows by each program that this process submits.

    With each that is ``wanted`` is the optimized HloModuleProto that XLA's CPU compiler made of it;
    with another, or where it refused the program or does not say, b"".
    """
    programs: list[tuple[Submitted, bytes]] = []

    def note(program: Submitted, number: int) -> None:
        programs.append((program, optimized(number) if number and wanted(program) else b""))

    with listening(note):
        yield programs


@contextmanager
def compilations() -> Iterator[list[bytes]]:
    """Within it, a list that grows by what XLA's CPU compiler makes of each program.

    Each is the optimized HloModuleProto, in which the partitioner's collectives are.
    ``harness.lanes.aot.optimized.read`` finds them. Raises RuntimeError at the end if the
    compiler did not say what it made of one.
    """
    programs: list[bytes] = []

    def note(_: Submitted, number: int) -> None:
        if number:
            programs.append(optimized(number))

    with listening(note):
        yield programs
    if b"" in programs:
        raise RuntimeError("XLA's CPU compiler does not say what it has made of a program")


def optimized(number: int) -> bytes:
    """Return what XLA's CPU compiler has made of a program that is still there; b"" if it is not.

    That is a serialised HloModuleProto; ``number`` is the program's in this process.
    """
    plugin, libc, size = library.load(), ctypes.CDLL(None), ctypes.c_size_t()
    plugin.virtual_tpu_optimized.restype = ctypes.c_void_p
    address = plugin.virtual_tpu_optimized(ctypes.c_uint(number), ctypes.byref(size))
    if address is None:
        return b""
    module = ctypes.string_at(address, size.value)
    libc.free(ctypes.c_void_p(address))
    return module


def sorted_options(options: bytes) -> bytes:
    """Return a CompileOptionsProto that is the same for equal options.

    The entries of its maps have another order in each that a framework writes.
    """
    plugin, libc = library.load_plugin(), ctypes.CDLL(None)
    plugin.virtual_tpu_sorted_options.restype = ctypes.c_void_p
    address = plugin.virtual_tpu_sorted_options(options, ctypes.c_size_t(len(options)))
    ordered = ctypes.string_at(address, len(options))
    libc.free(ctypes.c_void_p(address))
    return ordered


@contextmanager
def listening(note: Note) -> Iterator[None]:
    """Within it, ``note`` is called with each submitted program and its number; 0 if refused."""
    listen(note)
    try:
        yield
    finally:
        _notes.remove(note)
        if not _notes:  # programs are copied for those who listen
            library.load().virtual_tpu_set_listener(None)


_notes: list[Note] = []
_written: dict[bytes, bytes] = {}


@contextmanager
def written_as(artifact: bytes, mark: str) -> Iterator[None]:
    """Within it, a program that has ``mark`` in its code is noted as ``artifact``.

    That is the StableHLO portable artifact of what the framework has made, where the virtual TPU
    can only be given something else. JAX may submit it in a thread of XLA's.
    """
    _written[mark.encode()] = artifact
    try:
        yield
    finally:
        del _written[mark.encode()]


def _noted(program: Submitted) -> Submitted:
    originals = (code for mark, code in tuple(_written.items()) if mark in program.code)
    original = next(originals, None)
    return Submitted("mlir", original, program.options) if original else program


@_LISTENER  # type: ignore[untyped-decorator]
def _tell(program: Any, options: int, options_size: int, number: int) -> None:
    given = program.contents
    submitted = _noted(
        Submitted(
            ctypes.string_at(given.form, given.form_size).decode(),
            ctypes.string_at(given.code, given.code_size),
            ctypes.string_at(options, options_size),
        )
    )
    for note in tuple(_notes):
        note(submitted, number)


def listen(note: Note) -> None:
    """Call ``note`` with each program submitted from now on and its number; 0 of one refused."""
    library.load().virtual_tpu_set_listener(_tell)
    _notes.append(note)
