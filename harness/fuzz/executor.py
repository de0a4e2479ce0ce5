"""The process that compiles and runs random programs: ``python -m harness.fuzz.executor``.

It reads programs from standard input and writes how each ended to standard output, both as one line
of JSON. A fork computes the answers; what crashes or hangs XLA ends the fork, and another goes on.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO

import numpy as np

_NOT_OPTIMIZED = {"xla_backend_optimization_level": 0}  # LLVM takes most of the time otherwise
_OPTIMIZED_TOO = 4  # every so many programs are compiled as users compile them
_LIMIT = 30  # seconds of one program
_CACHED = 64  # programs after which JAX's caches are emptied
_SHARDY = "jax_use_shardy_partitioner"
_ROUNDING = {"bfloat16": 0.03, "float16": 0.03}
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
    import jax  # noqa: F401 - which takes a second, and each fork then has it

    is_owed = mmap.mmap(-1, 1)  # whether a program has no answer yet; forks share it
    is_owed[0] = 1
    is_first = True
    while True:
        child = os.fork()
        if not child:
            _serve(answers, log, is_owed, is_first=is_first)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            sys.stderr.write(log.read_text(errors="replace"))
            sys.exit(os.waitstatus_to_exitcode(status))
        is_first = False
        if is_owed[0]:  # else the process ended by what was computed before, and that has an answer
            number = os.WTERMSIG(status)
            if number == signal.SIGALRM:
                _write(answers, _ending("hang", ""))
            else:
                name = signal.Signals(number).name
                _write(answers, _ending("crash", f"{name}: {_fatal(log)}".rstrip(": ")))


def _fatal(log: Path) -> str:
    match = _FATAL.search(log.read_text(errors="replace"))
    return next(filter(None, match.groups()))[:300] if match else ""


def _serve(answers: TextIO, log: Path, is_owed: mmap.mmap, *, is_first: bool) -> NoReturn:
    """Say what devices there are, then answer one line after the other."""
    code = os.EX_SOFTWARE
    try:
        printed = os.open(log, os.O_WRONLY | os.O_APPEND)
        for stream in (1, 2):  # what a library prints is no answer, but may say why it crashed
            os.dup2(printed, stream)
        _answer_lines(answers, printed, is_owed, is_first=is_first)
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


def _answer_lines(answers: TextIO, printed: int, is_owed: mmap.mmap, *, is_first: bool) -> None:
    import jax

    devices, has_gspmd = len(jax.devices()), hasattr(jax.config, _SHARDY)
    if is_first:
        _write(answers, {"devices": devices, "gspmd": has_gspmd, "jax": jax.__version__})
    is_owed[0] = 0
    for number in range(1, sys.maxsize):
        if not (line := _line()):
            return
        is_owed[0] = 1
        os.ftruncate(printed, 0)
        program = json.loads(line)
        signal.alarm(_LIMIT)  # nothing handles it, so it ends this process also while XLA computes
        options = None if number % _OPTIMIZED_TOO == 0 else _NOT_OPTIMIZED
        answer = ending(program, options)
        if options and answer["kind"] not in ("right", "unusable"):
            answer = ending(program, None)  # as the test runs it
        signal.alarm(0)
        is_owed[0] = 0
        _write(answers, answer)
        if number % _CACHED == 0:
            jax.clear_caches()


def _line() -> bytes:
    """Read a line and nothing behind it, which the next fork may have to read."""
    line = b""
    while (byte := os.read(0, 1)) and byte != b"\n":
        line += byte
    return line


def ending(program: Mapping[str, Any], options: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Compile and run a program; return how it ended, and the StableHLO that XLA was given.

    With ``is_lowered_only`` it ends there.
    """
    import jax

    namespace: dict[str, Any] = {}
    with _partitioner(is_gspmd=program["is_gspmd"]):
        try:
            exec(compile(program["text"], "program", "exec"), namespace)  # noqa: S102 - it is ours
            lowered = namespace["program"]().lower(*namespace["GIVEN"])
            text = lowered.as_text()
        except Exception as error:
            is_typed = program["is_explicit"] and not isinstance(
                error, (AssertionError, LookupError)
            )
            return _ending("unusable" if is_typed else "not lowered", _first_line(error))
        if program["is_lowered_only"]:
            return _ending("right", "", text)
        try:
            compiled = lowered.compile(options)
        except Exception as error:
            # Of a result that would have parts of different sizes, newer JAX wants to be told.
            is_uneven = type(error).__name__ == "IndivisibleError"
            return _ending("unusable" if is_uneven else "refused", _first_line(error), text)
        try:
            given = jax.device_put(namespace["GIVEN"], list(compiled.input_shardings[0]))
            results = [np.asarray(result) for result in compiled(*given)]
        except Exception as error:
            return _ending("failed", _first_line(error), text)
    detail = _different(results, namespace["EXPECTED"])
    exchanged = _exchanged(compiled) if program["is_measured"] else 0
    return _ending("wrong" if detail else "right", detail, text, exchanged)


@contextlib.contextmanager
def _partitioner(*, is_gspmd: bool) -> Iterator[None]:
    import jax

    if not is_gspmd:
        yield
        return
    before = getattr(jax.config, _SHARDY)
    jax.config.update(_SHARDY, False)
    try:
        yield
    finally:
        jax.config.update(_SHARDY, before)


def _ending(kind: str, detail: str, text: str = "", exchanged: int = 0) -> Mapping[str, Any]:
    return {"kind": kind, "detail": detail, "stablehlo": text, "exchanged": exchanged}


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:400]


def _exchanged(compiled: Any) -> int:
    """Return the bytes that a device exchanges, as the compiled program says."""
    from harness.lanes.aot.optimized import read

    (module,) = compiled.runtime_executable().hlo_modules()
    return read(module.as_serialized_hlo_module_proto(), 1 << 20).bytes_inside


def _different(results: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> str:
    """Describe the first value that is wrong by more than rounding, "" for none."""
    for number, (result, right) in enumerate(zip(results, expected, strict=True)):
        if result.shape != right.shape:
            return f"result {number}: its shape is {result.shape}, expected {right.shape}"
        own, limit = result.astype(float), _ROUNDING.get(str(result.dtype), 1e-3)
        wrong = ~np.isclose(own, right, rtol=limit, atol=limit)
        if wrong.any():
            place = tuple(map(int, np.argwhere(wrong)[0]))
            return f"result {number}: {list(place)} is {own[place]}, expected {right[place]}"
    return ""


def _write(answers: TextIO, answer: Mapping[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
