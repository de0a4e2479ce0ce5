"""In a case's processes: keeps the programs that are compiled, or plants a fault in one.

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
from harness.sensitivity.program import Program, digest, likeness

_last: dict[int, tuple[Path, str]] = {}  # of each thread, the program that it compiles


def plant(form: str, code: bytes) -> tuple[bytes, list[tuple[str, str]]]:
    """What ``changed`` makes of it; what it is compiled with is noted, too."""
    if SUBMITTED_VARIABLE in os.environ:
        _listen()
    return changed(form, code)


def changed(form: str, code: bytes) -> tuple[bytes, list[tuple[str, str]]]:
    """The program with the fault that this case is to run with; no names where it has none.

    Args:
        form: ``hlo`` for a serialised HloModuleProto, ``mlir`` for a StableHLO portable artifact.
        code: in that form.

    Returns:
        A serialised HloModuleProto, and what was planted. While programs are kept that is nothing
        but the way through HLO, which every planted program goes.
    """
    if said := os.environ.get(RECORD_VARIABLE):
        return _record(Path(said), digest(code), as_hlo(form, code)), [("nothing", "")]
    told = json.loads(os.environ.get(FAULT_VARIABLE, "{}"))
    if not told or told["program"] == PLUGIN or in_python(told["program"]):
        return code, []
    same = told["program"] == digest(code)
    serialized = as_hlo(form, code) if same or form == "hlo" else b""
    if not same and (not serialized or told["like"] != likeness(serialized)):
        return code, []
    if said := os.environ.get(COMPARE_VARIABLE):
        _write(Path(said), json.dumps(vars(compared_here(told, serialized))).encode())
        return code, []
    return planted(told, serialized), [(told["operator"], "")]


def _record(said: Path, name: str, serialized: bytes) -> bytes:
    """Keep a program once for all cases, and that this one has compiled it."""
    path = said.parent / name
    if not path.exists():
        program = Program(serialized)
        found = {
            operator.name: [instruction.opcode for instruction, _ in operator.places(program)]
            for operator in OPERATORS.values()
        }
        facts = {
            "digest": name,
            "places": {operator: opcodes for operator, opcodes in found.items() if opcodes},
            "signature": program.signature(),
            "like": likeness(serialized),
            "name": program.module.name,
        }
        _write(path, serialized)
        _write(path.with_name(f"{name}.json"), json.dumps(facts).encode())
    with said.open("ab", buffering=0) as file:
        file.write(f"{name}\n".encode())
    _last[threading.get_ident()] = path, name
    return serialized


def _write(path: Path, content: bytes) -> None:
    """In one step, for those who look whether it is there."""
    part = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
    part.write_bytes(content)
    part.replace(path)


@cache
def _listen() -> None:
    """Have the plugin tell what is submitted, and what each program is compiled with."""

    def note(program: Submitted, _: int) -> None:
        with Path(os.environ[SUBMITTED_VARIABLE]).open("ab", buffering=0) as file:
            file.write(f"{digest(program.code)}\n".encode())
        keep_options(program.options)

    listen(note)


def keep_options(options: bytes) -> None:
    """Write down what the last program of this thread is compiled with, if it is kept."""
    path, name = _last.get(threading.get_ident(), (Path(), ""))
    if name and not (told := path.with_name(f"{name}.options")).exists():
        _write(told, options)
