"""The process that compiles and runs random programs: ``python -m harness.fuzz.executor jax``.

It reads programs from standard input and writes how each ended to standard output, both as one line
of JSON. A fork computes the answers; what crashes or hangs XLA ends the fork, and another goes on.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import signal
import sys
import tempfile
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, TextIO

from harness.frameworks import FRAMEWORKS
from harness.fuzz.endings import described

_OPTIMIZED_TOO = 4  # every so many programs are compiled as users compile them
_LIMIT = 30  # seconds of one program
_RUNNERS = {"torch": "dtensor", "torch_tpu": "dtensor"}
_PRELOAD = {"torch": ("torch.distributed.tensor",)}
_FATAL = re.compile(
    r"^(?:\S+ )?\S+: F \S+\] (.*)|^F\d{4} .*?\] (.*)|(Check failed: .*)|^(LLVM ERROR: .*)",
    re.MULTILINE,
)


def main() -> None:
    """Answer until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    log = Path(tempfile.mkstemp(prefix="fuzz-")[1])
    try:
        _answer_all(answers, log)
    finally:
        log.unlink()


def _answer_all(answers: TextIO, log: Path) -> None:
    framework = sys.argv[1]
    for module in (
        _PRELOAD.get(framework) or FRAMEWORKS[framework].preload
    ):  # which takes seconds, and each fork then has it
        import_module(module)
    is_owed = mmap.mmap(-1, 1)  # whether a program has no answer yet; forks share it
    is_owed[0] = 1
    is_first = True
    while True:
        child = os.fork()
        if not child:
            _serve(framework, answers, log, is_owed, is_first=is_first)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            sys.stderr.write(log.read_text(errors="replace"))
            sys.exit(os.waitstatus_to_exitcode(status))
        is_first = False
        if is_owed[0]:  # else the process ended by what was computed before, and that has an answer
            number = os.WTERMSIG(status)
            if number == signal.SIGALRM:
                _write(answers, described("hang", ""))
            else:
                name = signal.Signals(number).name
                _write(answers, described("crash", f"{name}: {_fatal(log)}".rstrip(": ")))


def _fatal(log: Path) -> str:
    match = _FATAL.search(log.read_text(errors="replace"))
    return next(filter(None, match.groups()))[:300] if match else ""


def _serve(
    framework: str, answers: TextIO, log: Path, is_owed: mmap.mmap, *, is_first: bool
) -> NoReturn:
    """Say what devices there are, then answer one line after the other."""
    code = os.EX_SOFTWARE
    try:
        printed = os.open(log, os.O_WRONLY | os.O_APPEND)
        for stream in (1, 2):  # what a library prints is no answer, but may say why it crashed
            os.dup2(printed, stream)
        _answer_lines(framework, answers, printed, is_owed, is_first=is_first)
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


def _answer_lines(
    framework: str, answers: TextIO, printed: int, is_owed: mmap.mmap, *, is_first: bool
) -> None:
    runner = import_module(f"harness.fuzz.{_RUNNERS.get(framework, framework)}_runner")
    facts = runner.start()
    if is_first:
        _write(answers, facts)
    is_owed[0] = 0
    for number in range(1, sys.maxsize):
        if not (line := _line()):
            return
        is_owed[0] = 1
        os.ftruncate(printed, 0)
        runner.get_ready(number)
        program = json.loads(line)
        signal.alarm(_LIMIT)  # nothing handles it, so it ends this process also while XLA computes
        is_optimized = number % _OPTIMIZED_TOO == 0
        answer = runner.ending(program, is_optimized=is_optimized)
        is_again = runner.OPTIMIZES and not is_optimized
        if is_again and answer["kind"] not in ("right", "unusable"):
            answer = runner.ending(program, is_optimized=True)  # as the test runs it
        signal.alarm(0)
        is_owed[0] = 0
        _write(answers, answer)
        if answer["kind"] in runner.SPOILING:
            os.kill(os.getpid(), signal.SIGKILL)  # another fork goes on


def _line() -> bytes:
    """Read a line; the next program is sent when this one has its answer."""
    line = b""
    while not line.endswith(b"\n") and (part := os.read(0, 1 << 16)):
        line += part
    return line


def _write(answers: TextIO, answer: Mapping[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
