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

# Names a file for what is told of the two programs, which are compared where the fault would be.
COMPARE_VARIABLE = "XLA_HARNESS_COMPARE"

PYTHON_VARIABLE = "XLA_HARNESS_PYTHON_FAULTS"  # the folders whose functions are noted, with ":"

STALE = "stale-program"
PLUGIN = "plugin"  # in place of a program, of what the plugin answers


def in_python(program: str) -> bool:
    """Whether a fault's program is a function of a framework."""
    return ":" in program


@dataclass(frozen=True)
class Fault:
    """Which fault a case runs with.

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
        """Whether it is in a framework's Python, and not in a program."""
        return in_python(self.program)

    @property
    def in_program(self) -> bool:
        """Whether it is in a program, which can be compared with the one without it."""
        return not self.in_python and self.program != PLUGIN

    @property
    def where(self) -> tuple[str, int]:
        """Return its place: a line of Python is the same place in every case that executes it."""
        return self.program, self.place

    @property
    def kind(self) -> tuple[str, str]:
        """Faults of one kind are one defect: operator and opcode, or line of a function."""
        opcode = f"{self.program} {self.opcode}" if self.in_python else self.opcode
        return self.operator, opcode

    @property
    def file(self) -> str:
        """What the files of its run are named by."""
        return f"fault-{self.number}"

    def text(self, folder: Path) -> str:
        """For the environment variable, with the folder in which the programs are."""
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
    """Of one fault, by its number.

    Attributes:
        equivalent: whether results and facts are equal; None where nobody can tell.
        why: what differs, or why nobody can tell.
        difference: of the two programs as HLO, in unified lines.
    """

    number: int
    equivalent: bool | None
    why: str
    difference: Sequence[str]


def case_file(folder: Path, case: str) -> Path:
    """Where a case's processes say which programs it compiles, a digest in each line."""
    return folder / f"case-{hashlib.sha256(case.encode()).hexdigest()[:16]}"


def compared_file(folder: Path, fault: Fault) -> Path:
    """Where a case's process says how the two programs of a fault compare, as JSON."""
    return folder / f"{fault.file}.compared"


def submitted_file(said: Path) -> Path:
    """Where the processes of a run note what they submit; ``said`` is the file of the run."""
    return said.with_suffix(".submitted")


def python_file(said: Path) -> Path:
    """Where they note which lines of a framework's functions they execute."""
    return said.with_suffix(".python")


def programs_of(folder: Path, case: str) -> list[Recorded]:
    """What a case has compiled, each program once, in order."""
    said = case_file(folder, case)
    digests = said.read_text().split() if said.exists() else []
    found = (folder / f"{digest}.json" for digest in dict.fromkeys(digests))
    return [Recorded(**json.loads(path.read_text())) for path in found]
