"""The process that asks a plugin: ``python -m harness.conformance.check_process``.

It reads questions from stdin, a line of JSON each: the check's id, the plugin's file, its options,
why it has no client here, faults to plant, its place in a job, a deadline in seconds, and two
files. It forks for each, so that no check begins with an import, and none meets what another one's
plugin has left. The forked process writes its steps into one file, each before it is taken, and its
answer at the end; what it and the plugin print goes to the other. How it ended is a line on stdout:
``exit 0``, ``signal 11`` or ``deadline``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from harness.conformance.plugin_check import (
    PROGRAM,
    Conformity,
    NonconformanceError,
    NotMeasurableError,
    PluginCheck,
    UnsupportedError,
    named,
)
from harness.conformance.plugin_file import NO_FILE

ANSWER = "answer "  # begins the last line; the others are steps
_MOST_OUTPUT = 1 << 26  # bytes that a plugin may print before it is ended
_TICK = 0.005  # seconds


def main() -> None:
    """Answer questions until there are no more."""
    for line in sys.stdin:
        question = json.loads(line)
        if question["imports"]:
            with suppress(ImportError):
                import_module(question["imports"])  # once for all forks
        check = named(question["check"])
        pid = os.fork()
        if pid == 0:
            _ask(check, question)
        sys.stdout.write(f"{_end(pid, question)}\n")
        sys.stdout.flush()


def _end(pid: int, question: dict[str, Any]) -> str:
    """Wait for a process, end it at its deadline, and end what it has started."""
    end, tick = time.monotonic() + question["deadline"], _TICK
    try:
        while time.monotonic() < end:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
                return f"signal {-code}" if code < 0 else f"exit {code}"
            if Path(question["output"]).stat().st_size > _MOST_OUTPUT:
                break
            time.sleep(tick)
            tick = min(tick * 1.2, 0.1)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return "deadline"
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)


def _ask(check: PluginCheck, question: dict[str, Any]) -> NoReturn:
    os.setsid()
    output = os.open(question["output"], os.O_WRONLY)
    steps = os.open(question["answers"], os.O_WRONLY)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(descriptor, target)
    try:
        answer = {**_answer(check, question, steps), "at": time.monotonic()}
        os.write(steps, f"{ANSWER}{json.dumps(answer)}\n".encode())
        if question["place"] and answer.get("result") != Conformity.FAILS:
            import_module("jax").distributed.shutdown()  # which waits for the other processes
    finally:
        os._exit(0)  # what a plugin does at exit is not the check's


def _answer(check: PluginCheck, question: dict[str, Any], steps: int) -> dict[str, str]:
    try:
        check(_subject(check, question, steps))
    except UnsupportedError as error:
        return {"result": Conformity.UNSUPPORTED, "detail": str(error)}
    except NotMeasurableError as error:
        return {"result": Conformity.NOT_MEASURABLE, "detail": str(error)}
    except NonconformanceError as error:
        return {"result": Conformity.FAILS, "detail": str(error)}
    except (AttributeError, ImportError, NameError, TypeError):
        return {"bug": traceback.format_exc()}  # of the check's: no plugin raises these
    except Exception as error:
        traceback.print_exc()
        return {"result": Conformity.FAILS, "detail": str(error) or type(error).__name__}
    return {"result": Conformity.CONFORMS, "detail": ""}


def _subject(check: PluginCheck, question: dict[str, Any], steps: int) -> Any:
    def note_program(text: str) -> None:
        os.write(steps, f"{PROGRAM}{json.dumps(text)}\n".encode())

    if check.level in (2, 3):
        from harness.conformance.jax_programs.compared_program import JaxSubject

        if question["fault"]:  # this alone needs what plants faults
            planter = import_module("harness.sensitivity.planted_jax_programs")
            planter.attach(check.id, question["fault"])
        name, library, options = (question[key] for key in ("name", "plugin", "options"))
        place = tuple(question["place"]) if question["place"] else None
        return JaxSubject(name, library, options, question["no_client"], note_program, place)
    if question["plugin"] == str(NO_FILE):
        if check.level == 1:
            from harness.conformance.operators.devices import JaxlibDevice

            return JaxlibDevice(note_program)
        raise NotMeasurableError("jaxlib's own client has no table")
    from harness.conformance.c_api.api import CApi
    from harness.conformance.c_api.client import Client
    from harness.conformance.c_api.planted import Shim

    def note(step: str) -> None:
        os.write(steps, f"{step}\n".encode())

    assert check.level in (0, 1)
    fault = question["fault"]
    shim = Shim(fault, note) if fault and check.level == 0 else None
    planted = Path(fault).read_bytes() if fault and check.level == 1 else b""
    api = CApi(Path(question["plugin"]), note=note, shim=shim)
    missing, uninitialized = question["no_client"], question["uninitialized"]
    client = Client(api, question["options"], missing, uninitialized, planted)
    if check.level == 0:
        return client
    from harness.conformance.operators.devices import TableDevice

    return TableDevice(client, note_program)


if __name__ == "__main__":
    main()
