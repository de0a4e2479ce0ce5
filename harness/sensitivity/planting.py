"""Keep the programs that a case's processes compile, or plant a fault in one of them.

The plugin calls ``plant`` for each program, after Pallas kernels in it have been made HLO. Where no
plugin sees programs, ``compilers`` calls ``changed``.
"""

from __future__ import annotations

import json
import os
import threading
from functools import cache
from pathlib import Path

from harness.lanes.virtual.lowering import as_hlo
from harness.lanes.virtual.submitted import Submitted, listen
from harness.sensitivity.equivalence import compared_here
from harness.sensitivity.fault import (
    COMPARE_VARIABLE,
    FAULT_VARIABLE,
    PLUGIN,
    RECORD_VARIABLE,
    SUBMITTED_VARIABLE,
    in_python,
)
from harness.sensitivity.operators import OPERATORS, planted
from harness.sensitivity.program import EditedModule, digest, likeness

_last: dict[int, tuple[Path, str]] = {}  # of each thread, the program that it compiles


def plant(form: str, code: bytes) -> tuple[bytes, list[tuple[str, str]]]:
    """Return what ``changed`` does, and have the plugin report what it submits and compiles."""
    if SUBMITTED_VARIABLE in os.environ:
        _listen()
    return changed(form, code)


def changed(form: str, code: bytes) -> tuple[bytes, list[tuple[str, str]]]:
    """Plant the fault that this case is to run with; nothing is planted in other programs.

    Args:
        form: ``hlo`` for a serialised HloModuleProto, ``mlir`` for a StableHLO portable artifact.
        code: in that form.

    Returns:
        A serialised HloModuleProto, and the names of what was planted. While programs are recorded,
        they only take the way through HLO that every planted program takes.
    """
    if file := os.environ.get(RECORD_VARIABLE):
        return _record(Path(file), digest(code), as_hlo(form, code)), [("nothing", "")]
    fault = json.loads(os.environ.get(FAULT_VARIABLE, "{}"))
    if not fault or fault["program"] == PLUGIN or in_python(fault["program"]):
        return code, []
    same = fault["program"] == digest(code)
    serialized = as_hlo(form, code) if same or form == "hlo" else b""
    if not same and (not serialized or fault["like"] != likeness(serialized)):
        return code, []
    if file := os.environ.get(COMPARE_VARIABLE):
        _write(Path(file), json.dumps(vars(compared_here(fault, serialized))).encode())
        return code, []
    return planted(fault, serialized), [(fault["operator"], "")]


def _record(run_file: Path, name: str, serialized: bytes) -> bytes:
    """Store a program once for all cases, and note that this case compiles it."""
    path = run_file.parent / name
    if not path.exists():
        program = EditedModule(serialized)
        places = {
            operator.name: [instruction.opcode for instruction, _ in operator.places(program)]
            for operator in OPERATORS.values()
        }
        facts = {
            "digest": name,
            "places": {operator: opcodes for operator, opcodes in places.items() if opcodes},
            "signature": program.signature(),
            "like": likeness(serialized),
            "name": program.module.name,
        }
        _write(path, serialized)
        _write(path.with_name(f"{name}.json"), json.dumps(facts).encode())
    with run_file.open("ab", buffering=0) as file:
        file.write(f"{name}\n".encode())
    _last[threading.get_ident()] = path, name
    return serialized


def _write(path: Path, content: bytes) -> None:
    """Write a file in one step, since other processes check whether it exists."""
    part = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
    part.write_bytes(content)
    part.replace(path)


@cache
def _listen() -> None:
    """Have the plugin report each program that is submitted, with its compile options."""

    def note(program: Submitted, _: int) -> None:
        with Path(os.environ[SUBMITTED_VARIABLE]).open("ab", buffering=0) as file:
            file.write(f"{digest(program.code)}\n".encode())
        keep_options(program.options)

    listen(note)


def keep_options(options: bytes) -> None:
    """Write down the compile options of this thread's last program, if it is recorded."""
    path, name = _last.get(threading.get_ident(), (Path(), ""))
    if name and not (options_file := path.with_name(f"{name}.options")).exists():
        _write(options_file, options)
