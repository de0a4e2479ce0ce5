"""Stacks and causes of a process that crashed or hangs."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from harness.isolation import cgroups
from harness.model.outcome import Kind

_PY_SPY_SECONDS = 30
_HEADERS = {
    "Segmentation fault": signal.SIGSEGV,
    "Aborted": signal.SIGABRT,
    "Bus error": signal.SIGBUS,
    "Illegal instruction": signal.SIGILL,
    "Floating-point exception": signal.SIGFPE,
    "Floating point exception": signal.SIGFPE,
}
_FATAL_LINE = re.compile(  # of Abseil's log, and of XLA's own
    r"^(?:F\d{4} [\d:.]+\s+\d+|\d{4}-\d\d-\d\d [\d:.]+: F) (?P<text>.+)$", re.MULTILINE
)
_PYTHON_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>.+)')
_RUNNER_FRAME = re.compile(
    r"[ /\"(](_pytest|pluggy|harness/isolation)/|harness/session|pytest/__main__|<frozen runpy>"
)
_OUT_OF_MEMORY = re.compile(
    r"MemoryError|std::bad_alloc|can't allocate memory|Cannot allocate memory"
    r"|RESOURCE_EXHAUSTED|Out of memory allocating|LLVM ERROR: out of memory"
)


@dataclass(frozen=True)
class Death:
    """Death of a case that gave no result: its cause, and the stacks at that time."""

    kind: Kind
    signal: str
    message: str
    python_stack: str
    native_stack: str


def hung(deadline: float, dump: str, native: str) -> Death:
    """Describe the death of a case that had no result after ``deadline`` seconds."""
    frame = innermost_frame(dump) or innermost_frame_of_py_spy(native)
    where = f" in {frame}" if frame else ""
    return Death(Kind.HUNG, "", f"no result after {deadline:g} s{where}", dump, native)


def crashed(status: int, dump: str, native: str) -> Death:
    """Describe the death of a case whose process ended with ``status``, negative for a signal."""
    if status >= 0:
        return Death(Kind.CRASHED, "", f"exited with status {status} before its result", dump, "")
    name = signal.Signals(-status).name
    frame = innermost_frame(dump)
    return Death(Kind.CRASHED, name, f"{name} in {frame}" if frame else name, dump, native)


def native_stack(pid: int) -> str:
    """Return every thread's Python and native frames from py-spy, or why there are none."""
    beside = Path(sysconfig.get_path("scripts")) / "py-spy"
    program = str(beside) if beside.exists() else shutil.which("py-spy")
    if program is None:
        return "(no native stack: py-spy is not installed)"
    command = [program, "dump", "--native", "--pid", str(pid)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PY_SPY_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"(no native stack: py-spy took over {_PY_SPY_SECONDS} s)"
    except OSError as error:  # the case may have taken all processes that there can be
        return f"(no native stack: py-spy can't be started: {error.strerror})"
    if done.returncode != 0:
        return f"(no native stack: py-spy: {done.stderr.strip().partition(chr(10))[0]})"
    return done.stdout


def without_runner(stack: str) -> str:
    """Return the stack without the frames of pytest and of the harness, which all stacks share."""
    lines = stack.strip().splitlines()
    kept = [line for line in lines if not _RUNNER_FRAME.search(line) or " -m pytest" in line]
    dropped = len(lines) - len(kept)
    return "\n".join(kept + ([f"  [... {dropped} frames of pytest's ...]"] if dropped else []))


def signal_of_dump(dump: str) -> signal.Signals | None:
    """Return the signal at the beginning of a dump of faulthandler."""
    match = re.search(r"Fatal Python error: ([^\n]+)", dump)
    return _HEADERS.get(match[1]) if match else None


def fatal_line(stderr: str) -> str:
    """Return the text of XLA's last fatal log line (LOG(FATAL), CHECK), or ``""``."""
    lines = _FATAL_LINE.findall(stderr)
    return str(lines[-1]) if lines else ""


def out_of_memory_text(text: str) -> bool:
    """Return whether an error text says that memory ran out."""
    return _OUT_OF_MEMORY.search(text) is not None


def innermost_frame(dump: str) -> str:
    """``name (file:line)`` of the current thread's innermost Python frame, or ``""``."""
    start = max(dump.find("Current thread"), 0)
    match = _PYTHON_FRAME.search(dump, start)
    if match is None:
        return ""
    return f"{match['name']} ({Path(match['file']).name}:{match['line']})"


def innermost_frame_of_py_spy(dump: str) -> str:
    """Return the innermost frame in py-spy's dump, for a process that wrote none of its own."""
    match = re.search(r"^ +(\S+ \([^)]+\.py:\d+\))$", dump, re.MULTILINE)
    return match[1] if match else ""


class KernelOomKills:
    """Counts the kernel's out-of-memory kills in this process's memory cgroup."""

    def __init__(self) -> None:
        names = ("memory.oom_control", "memory.events")  # of the first and of the second version
        self._files = [folder / name for folder in cgroups.folders("memory") for name in names]
        self.mark()

    def mark(self) -> None:
        """Count from now on."""
        self._before = self._count()

    def _count(self) -> int:
        total = 0
        for file in self._files:
            try:
                lines = file.read_text().splitlines()
            except OSError:
                continue
            total += sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
        return total

    def happened(self) -> bool:
        """Return whether the kernel has killed a process for memory since ``mark``."""
        return self._count() > self._before
