"""What random programs run on: a lane, in this environment or in a stack's."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO, Any

from harness.diagnosis.signature import generalised
from harness.errors import BadInputError
from harness.fuzz.random_program import RandomProgram
from harness.isolation import libc

_WITHOUT_LINES = {"XLA_IR_DEBUG": "0", "XLA_HLO_DEBUG": "0"}  # of Python, which take time
# Else a gradient starts TorchTPU's runtime, where it is installed, and waits for TPUs.
_WITHOUT_TPUS = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
_SHOWN = 6  # lines of what an executor printed before it ended


@dataclass(frozen=True)
class RandomEnding:
    """How a random program ended on a subject.

    Attributes:
        kind: ``right``, ``wrong``, ``not lowered`` by the framework, ``refused`` by the compiler,
            ``failed`` while it ran, ``crash``, ``hang``, or ``larger`` than on the base. One whose
            explicit axes do not fit, whose result JAX does not divide, or that needs what JAX says
            it does not have, is ``unusable``, which is no failure.
        detail: the error's first line, the signal, or how the numbers differ.
        stablehlo: the program that the compiler was given, as far as it came.
        exchanged: bytes that a device exchanges, if that was measured.
    """

    kind: str
    detail: str = ""
    stablehlo: str = ""
    exchanged: int = 0

    @property
    def is_failure(self) -> bool:
        """Return whether the program should have ended otherwise."""
        return self.kind not in ("right", "unusable")

    @property
    def signature(self) -> str:
        """Return what is equal for equal failures."""
        says_little = self.kind in ("wrong", "larger") or not self.detail
        return self.kind if says_little else f"{self.kind}: {generalised(self.detail)[:100]}"


@dataclass
class Subject:
    """A lane in an environment, with the process that compiles and runs programs there.

    Attributes:
        stack: the stack's name, "" for this environment.
        lane: the lane's name.
        topology: its devices, "" for the lane's own.
        framework: whose programs it runs.
        facts: ``devices``, ``gspmd`` and ``version``, once it has started.
    """

    stack: str
    lane: str
    topology: str
    framework: str = "jax"
    facts: Mapping[str, Any] = field(default_factory=dict)
    is_measured: bool = False  # whether to count exchanged bytes
    _process: subprocess.Popen[str] | None = None
    _log: IO[str] | None = None

    def __str__(self) -> str:
        return self.stack or f"{self.framework} {self.facts.get('version', '')}".strip()

    @property
    def command(self) -> list[str]:
        """Return what starts the process on the lane."""
        stack = ["--stack", self.stack] if self.stack else []
        size = ["--topology", self.topology] if self.topology else []
        python = "python" if self.stack else sys.executable
        return [
            *(sys.executable, "-m", "harness", "run", "--lane", self.lane, *size, *stack),
            *("--", python, "-m", "harness.fuzz.executor", self.framework),
        ]

    def start(self) -> None:
        """Start the process and learn about its devices. Raises BadInputError."""
        self._log = tempfile.TemporaryFile("w+", prefix="fuzz-")  # noqa: SIM115 - until it ends
        self._process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            preexec_fn=libc.DieWithParent(),  # noqa: PLW1509 - two system calls
            start_new_session=True,  # Ctrl-C is for the search, which then ends it
            env=os.environ | _WITHOUT_LINES | (_WITHOUT_TPUS if self.framework == "torch" else {}),
        )
        self.facts = self._answer()

    def end(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.communicate()
            self._process = None

    def run(self, program: RandomProgram, *, only_lower: bool = False) -> RandomEnding:
        """Compile and run a program there; return how it ended."""
        assert self._process is not None
        assert self._process.stdin is not None
        request = {
            "text": program.text,
            "is_gspmd": program.is_gspmd,
            "is_explicit": program.is_explicit,
            "is_lowered_only": only_lower,
            "is_measured": self.is_measured,
        }
        with contextlib.suppress(BrokenPipeError):  # it has ended, and its log says why
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        return RandomEnding(**self._answer())

    def _answer(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        assert self._log is not None
        if line := self._process.stdout.readline():
            answer: dict[str, Any] = json.loads(line)
            return answer
        code = self._process.wait()
        self._log.seek(0)
        last = "\n  ".join(self._log.read().strip().splitlines()[-_SHOWN:])
        raise BadInputError(f"fuzz: what runs programs on {self} ended with {code}\n  {last}")
