"""A fault: one place of one program of one case, and what is wrong there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

# In the environment of a case's processes: the fault to plant, or where to keep its programs.
FAULT_VARIABLE = "XLA_HARNESS_FAULT"
RECORD_VARIABLE = "XLA_HARNESS_PROGRAMS"

# Names a file for a line on each program that is submitted.
SUBMITTED_VARIABLE = "XLA_HARNESS_SUBMITTED"

# Names a file for the comparison of the two programs, which the case's process makes.
COMPARE_VARIABLE = "XLA_HARNESS_COMPARE"

PYTHON_VARIABLE = "XLA_HARNESS_PYTHON_FAULTS"  # files and folders that are traced, joined by ":"

STALE = "stale-program"
PLUGIN = "plugin"  # stands for a program if the fault is a wrong answer of the plugin


def in_python(program: str) -> bool:
    """Return whether a fault's program is a function of a framework."""
    return ":" in program


@dataclass(frozen=True)
class Fault:
    """Fault with which a case runs.

    Attributes:
        number: from 0, in the order of the plan.
        case: the pytest id.
        program: the digest of the program; ``module:name:line`` of a function of a framework;
            ``plugin`` for one of its answers.
        operator: what is done to it.
        place: which of the places at which the operator can be planted there, from 0.
        opcode: of the instruction at that place.
        like: what else the program is known by, see ``Recorded``.
        other: for a stale program, the digest of the one that runs in its place.
    """

    number: int
    case: str
    program: str
    operator: str
    place: int
    opcode: str = ""
    other: str = ""
    like: str = ""

    @property
    def in_python(self) -> bool:
        """Return whether the fault is in a framework's Python, and not in a program."""
        return in_python(self.program)

    @property
    def in_program(self) -> bool:
        """Return whether the fault is in a program, which can be compared with the original."""
        return not self.in_python and self.program != PLUGIN

    @property
    def where(self) -> tuple[str, int]:
        """Return the fault's place. A line of Python is the same place in every case."""
        return self.program, self.place

    @property
    def kind(self) -> tuple[str, str]:
        """Return what identifies the defect: operator and opcode, or line of a function."""
        opcode = f"{self.program} {self.opcode}" if self.in_python else self.opcode
        return self.operator, opcode

    @property
    def file(self) -> str:
        """Return the stem of the names of its run's files."""
        return f"fault-{self.number}"

    def text(self, folder: Path) -> str:
        """Return the value of the environment variable, which includes the programs' folder."""
        return json.dumps({**asdict(self), "folder": str(folder)})


@dataclass(frozen=True)
class Recorded:
    """A program that a case has compiled.

    Attributes:
        digest: its name; ``module:name:line`` of a function of a framework.
        places: of each operator, the opcode at each place where it can be planted; operators
            without a place are left out. "" is a place where a fault could do nothing.
        signature: its parameters and its result, equal for equal ones.
        name: of the module, as ``jit_step``.
        like: equal for the same program with other names and addresses in it.
    """

    digest: str
    places: Mapping[str, Sequence[str]]
    signature: str
    name: str
    like: str = ""


@dataclass(frozen=True)
class Compared:
    """Result of comparing a fault's program with the original.

    Attributes:
        number: of the fault.
        equivalent: whether results and facts are equal; None if the programs cannot be compared.
        why: what differs, or why the programs cannot be compared.
        difference: unified diff of the two programs as HLO.
    """

    number: int
    equivalent: bool | None
    why: str
    difference: Sequence[str]


def case_file(folder: Path, case: str) -> Path:
    """Return the file in which a case's processes list the digests of its programs."""
    return folder / f"case-{hashlib.sha256(case.encode()).hexdigest()[:16]}"


def compared_file(folder: Path, fault: Fault) -> Path:
    """Return the file in which a case's process writes a ``Compared`` as JSON."""
    return folder / f"{fault.file}.compared"


def submitted_file(run_file: Path) -> Path:
    """Return the file in which the processes of a run note the programs that they submit."""
    return run_file.with_suffix(".submitted")


def python_file(run_file: Path) -> Path:
    """Return the file in which the processes of a run note the executed lines of Python."""
    return run_file.with_suffix(".python")


def programs_of(folder: Path, case: str) -> list[Recorded]:
    """Return the programs that a case has compiled, each once, in order."""
    file = case_file(folder, case)
    digests = file.read_text().split() if file.exists() else []
    files = (folder / f"{digest}.json" for digest in dict.fromkeys(digests))
    return [Recorded(**json.loads(path.read_text())) for path in files]
