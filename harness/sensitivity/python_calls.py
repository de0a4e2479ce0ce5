"""Lines of Python that a case executes."""

from __future__ import annotations

import os
import sys
import threading
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType
from typing import Any


class Calls:
    """Tracer of the lines of some files and folders that this process and its forks execute.

    It writes each line to a file at its first execution: a forked process may end at any time.
    """

    def __init__(self, paths: tuple[str, ...], file: Path) -> None:
        self._paths = paths
        self._lines: dict[CodeType, set[int]] = {}
        self._file = file
        self._out = -1

    def start(self) -> None:
        """Start tracing in this thread, and in threads and processes that it starts or forks."""
        self._out = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        threading.settrace(self._enter)
        self._listen()
        # coverage.py starts its own tracer in each forked process, which replaces this one.
        os.register_at_fork(after_in_child=self._listen)

    def stop(self) -> None:
        """Stop tracing."""
        sys.settrace(None)
        threading.settrace(None)
        os.close(self._out)
        self._out = -1

    def _listen(self) -> None:
        if self._out >= 0:
            sys.settrace(self._enter)
            if torch := sys.modules.get("torch"):
                # A backward pass on a device runs in a thread of C++, which no tracer is set in.
                torch.autograd.set_multithreading_enabled(False)

    def _enter(self, frame: Any, event: str, argument: object) -> Any:
        del argument
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(self._paths):
            return None
        # The body of a module or of a class has the lines of its functions' heads.
        if not code.co_flags & CO_OPTIMIZED and "<locals>" not in code.co_qualname:
            return None
        self._lines.setdefault(code, set())
        return self._line

    def _line(self, frame: Any, event: str, argument: object) -> Any:
        del argument
        known = self._lines[frame.f_code]
        if event == "line" and frame.f_lineno not in known:
            known.add(frame.f_lineno)
            os.write(self._out, f"{frame.f_globals.get('__name__')} {frame.f_lineno}\n".encode())
        return self._line


def called(file: Path) -> dict[str, set[int]]:
    """Read the lines that ``Calls`` wrote, by their modules' names; none without the file."""
    lines: dict[str, set[int]] = {}
    for text in file.read_text().splitlines() if file.exists() else ():
        module, _, line = text.rpartition(" ")
        lines.setdefault(module, set()).add(int(line))
    return {module: lines[module] for module in sorted(lines)}
