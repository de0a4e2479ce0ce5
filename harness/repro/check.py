"""Running a case, and a script, and comparing how the two end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from harness import frameworks
from harness.diagnosis.signature import headline
from harness.errors import BadInputError
from harness.junit import report
from harness.lanes import DEFAULT_LANE
from harness.model.case import Case
from harness.model.outcome import Kind
from harness.repro.header import options_of
from harness.repro.script import EXIT_SKIPPED

_EXCEPTION = re.compile(r"^([A-Za-z_][\w.]*)(?::\s?(.*))?$")
_DIED = 128  # plus a signal is what a shell says of a process that died by it
_STARTUP = 5.0  # seconds that a script may always take to start
_PROCESS = re.compile(r"rank +(\d+) \| ")  # as xla-harness run writes it
_TRACEBACK = re.compile(r"^Traceback \(most recent call last\):\n", re.MULTILINE)
_RANK = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)  # torch.distributed's, in a process group
_TEMPORARY = re.compile(r"/\S+|0x[0-9a-fA-F]+|\b\w+(\.\w+)*\.(?=[A-Za-z_]\w*'>)")


@dataclass(frozen=True)
class Ending:
    """End of a case or a script: ``kind``, the signal of a crash, a failure's message."""

    kind: Kind
    message: str = ""
    signal: str = ""
    seconds: float = 0.0  # with the start of Python and its imports
    layer: str = ""  # of a case

    @property
    def first_line(self) -> str:
        return self.message.strip().partition("\n")[0]

    def __str__(self) -> str:
        detail = self.signal or headline(self.message)
        return f"{self.kind}: {detail}" if detail else str(self.kind)

    def is_like(self, other: Ending) -> bool:
        """Return whether both have the same signal, or exception with first line, or both hang."""
        if self.kind != other.kind:
            return False
        if self.kind == Kind.CRASHED:
            return self.signal == other.signal
        return self.kind != Kind.FAILED or _alike(self.first_line, other.first_line)


def of_case(case: Case, root: Path) -> Ending:
    """Run the case in a pytest of its own; raises BadInputError when that gives no result."""
    with tempfile.TemporaryDirectory(prefix="repro-") as folder:
        file = Path(folder) / "report.xml"
        line = [sys.executable, "-m", "pytest", "-q", "--lane", case.target.lane]
        line += [f"--junitxml={file}", "-p", "no:cacheprovider", f"--rootdir={root}", case.id]
        start = time.monotonic()
        done = subprocess.run(
            line,
            env=frameworks.without_lanes(os.environ),
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = time.monotonic() - start
        results = report.read(file).results.values() if file.exists() else ()
    for result in results:
        if result.id == case.id:
            signal_ = result.properties.get("signal", "")
            return Ending(result.actual, result.failure, signal_, seconds, result.layer)
    tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-5:])
    raise BadInputError(f"{case.id}: running it gave no result:\n{tail}")


def of_script(path: Path, case: Case, like: Ending) -> Ending:
    """Run the script in a fresh process; it hangs when it takes far longer than the case did."""
    deadline = case.deadline + _STARTUP + 2 * like.seconds
    inherited = frameworks.without_lanes(os.environ)  # collecting the case has set some
    environment = {k: v for k, v in inherited.items() if not k.startswith("PYTEST_")}
    command = [sys.executable, str(path)]
    if case.target.lane != DEFAULT_LANE:
        run = [sys.executable, "-m", "harness", "run", *options_of(case.target)]
        command = [*run, "--", *command]
    try:
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=deadline,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Ending(Kind.HUNG, f"no result after {case.deadline + _STARTUP:g} s")
    number = -done.returncode
    if case.target.lane != DEFAULT_LANE:  # xla-harness run ends as a shell does
        number = done.returncode - _DIED
    if number in {*signal.Signals}:
        return Ending(Kind.CRASHED, signal=signal.Signals(number).name)
    if done.returncode == 0:
        return Ending(Kind.PASSED)
    if done.returncode == EXIT_SKIPPED:
        return Ending(Kind.SKIPPED, done.stdout.rstrip().rpartition("\n")[2])
    return Ending(Kind.FAILED, _exception(done.stderr))


def _exception(stderr: str) -> str:
    """Return the text below the last traceback: ``Type: message``."""
    stderr = _RANK.sub("", _of_one_process(stderr))
    starts = [*_TRACEBACK.finditer(stderr)]
    lines = stderr[starts[-1].end() :].splitlines() if starts else stderr.splitlines()[-1:]
    unindented = [at for at, line in enumerate(lines) if line and not line[0].isspace()]
    start = next(
        (at for at in unindented if _EXCEPTION.match(lines[at])), unindented[0] if unindented else 0
    )
    return "\n".join(lines[start:])


def _of_one_process(stderr: str) -> str:
    """Return the lines of the first process that has a traceback, if this is a job's output."""
    by_process: dict[str, list[str]] = {}
    for line in stderr.splitlines():
        if match := _PROCESS.match(line):
            by_process.setdefault(match[1], []).append(line[match.end() :])
    texts = ("\n".join(by_process[number]) for number in sorted(by_process))
    return next(filter(_TRACEBACK.search, texts), stderr)


def _alike(message: str, other: str) -> bool:
    """Compare exception and text; an assertion without a text has pytest's in its place."""
    (type_, text), (other_type, other_text) = _parts(message), _parts(other)
    if type_ != other_type:
        return False
    if type_ == "AssertionError" and not (text and other_text):
        return (text or other_text).startswith("assert ") or text == other_text
    return _general(text) == _general(other_text)


def _parts(line: str) -> tuple[str, str]:
    if line.startswith("assert "):
        return "AssertionError", line
    match = _EXCEPTION.match(line)
    if match is None:
        return "", line
    return match[1].rpartition(".")[2], match[2] or ""


def _general(text: str) -> str:
    """Without what differs from run to run: addresses, paths, and where a class is defined."""
    return _TEMPORARY.sub("", text).strip()
