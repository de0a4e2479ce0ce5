"""Ask a plugin each check in a process of its own, and see how the process ends."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from harness.conformance.answer import STACK_MARK, CheckAnswer
from harness.conformance.check_process import ANSWER
from harness.conformance.plugin_check import PLANTED, PROGRAM, Conformity, PluginCheck
from harness.conformance.plugin_file import NO_FILE, PluginFile

DEADLINE = 20.0  # seconds for a check
_STEPS = 12  # the last ones that are kept
_OUTPUT = 4000  # bytes of the end of what a plugin prints that are kept


@dataclass(frozen=True)
class Asker:
    """How the checks of one plugin are run.

    ``no_client`` is why the plugin has no client here, or "", and ``uninitialized`` whether not
    even its initialization ended well; ``fault`` is the name of a planted fault, for those who ask
    which checks see it; ``keeps_steps`` keeps all functions that a check called, and its
    program, and not only the last ones of one that fails.
    """

    plugin: PluginFile
    no_client: str = ""
    uninitialized: bool = False
    deadline: float = DEADLINE
    fault: str = ""
    keeps_steps: bool = False

    def all(self, checks: Iterable[PluginCheck], servers: Servers) -> Iterator[CheckAnswer]:
        """Yield the answers as they come, from as many checks at a time as there are servers."""
        with ThreadPoolExecutor(servers.count) as pool:
            answers = [pool.submit(self._one, check, servers) for check in checks]
            for done in as_completed(answers):
                yield done.result()

    def together(self, check: PluginCheck, servers: Servers) -> CheckAnswer:
        """Ask a check of as many processes as there are servers, which are one job.

        Return the answer of the first process that did not conform: the others may have ended
        because it had.
        """
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
        places = [(address, servers.count, number) for number in range(servers.count)]
        with ThreadPoolExecutor(servers.count) as pool:
            answers = list(pool.map(partial(self._one, check, servers), places))
        number, first = min(
            enumerate(answers),
            key=lambda each: (each[1].result is Conformity.CONFORMS, each[1].seconds),
        )
        return replace(first, detail=first.detail and f"process {number}: {first.detail}")

    def _one(
        self, check: PluginCheck, servers: Servers, place: tuple[str, int, int] | None = None
    ) -> CheckAnswer:
        begun = time.monotonic()
        with tempfile.NamedTemporaryFile() as answers, tempfile.NamedTemporaryFile() as output:
            end = servers.ask(
                {
                    "check": check.id,
                    "name": self.plugin.name,
                    "plugin": str(self.plugin.path),
                    "imports": "jax" if self._needs_jax(check) else "",
                    "options": dict(self.plugin.options),
                    "no_client": self.no_client,
                    "uninitialized": self.uninitialized,
                    "fault": self.fault,
                    "place": place,
                    "deadline": self.deadline,
                    "answers": answers.name,
                    "output": output.name,
                }
            )
            lines = _text(Path(answers.name)).splitlines()
            printed = _text(Path(output.name))[-_OUTPUT:]
        steps = tuple(line for line in lines if not line.startswith((ANSWER, PROGRAM)))
        programs = [line.removeprefix(PROGRAM) for line in lines if line.startswith(PROGRAM)]
        steps = steps if self.keeps_steps else steps[-_STEPS:]
        answer = CheckAnswer(
            f"{check.id}{STACK_MARK}{servers.stack}" if servers.stack else check.id,
            check.title,
            Conformity.FAILS,
            steps=steps,
            output=printed,
            program=json.loads(programs[-1]) if programs else "",
            seconds=time.monotonic() - begun,
        )
        if lines and lines[-1].startswith(ANSWER):
            data = json.loads(lines[-1].removeprefix(ANSWER))
            return self._read(replace(answer, seconds=data["at"] - begun), data)
        called = [step for step in steps if step != PLANTED]
        last = f" in {called[-1]}" if called else " before it called the plugin"
        if end == "deadline":
            return replace(answer, kind="hung", detail=f"hung{last}, for {self.deadline:.0f} s")
        return replace(answer, kind="crashed", detail=f"{_how(end)}{last}")

    def _needs_jax(self, check: PluginCheck) -> bool:
        return check.level > (0 if self.plugin.path == NO_FILE else 1)

    def _read(self, answer: CheckAnswer, data: Mapping[str, Any]) -> CheckAnswer:
        """Return the answer that the process itself has given."""
        if "bug" in data:
            raise RuntimeError(f"check {answer.id}:\n{data['bug']}")
        result = Conformity(data["result"])
        if result != Conformity.FAILS:
            answer = replace(answer, result=result, detail=data["detail"], output="")
            return answer if self.keeps_steps else replace(answer, steps=(), program="")
        return replace(answer, kind="failed", detail=data["detail"])


class Servers:
    """Processes that ask, one for each worker."""

    def __init__(self, count: int, stack: str = "") -> None:
        """Start them, in the environment of a stack if one is named."""
        self.count, self.stack = count, stack
        self._idle: queue.SimpleQueue[subprocess.Popen[str]] = queue.SimpleQueue()
        python, environment = python_of(stack)
        self._all = [_start(python, environment) for _ in range(count)]
        for each in self._all:
            self._idle.put(each)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._all:
            each.kill()
            with suppress(BrokenPipeError), each:
                pass  # which closes its pipes, and waits for it

    def ask(self, question: Mapping[str, Any]) -> str:
        """Return how the process of a question has ended."""
        server = self._idle.get()
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(question) + "\n")
        server.stdin.flush()
        end = server.stdout.readline().strip()
        self._idle.put(server)  # also one that has ended: others must not wait for it
        if not end:
            raise RuntimeError(f"the process that asks has ended with {server.wait()}")
        return end


def python_of(stack: str) -> tuple[str, Mapping[str, str]]:
    """Return the Python of a stack, and its variables; raises BadInputError."""
    if not stack:
        return sys.executable, os.environ
    from harness.commands.in_stack import stack_named
    from harness.commands.output import say
    from harness.matrix.cell import variables
    from harness.stacks.environments import Environments

    environments = Environments()
    python = environments.create(stack_named(stack), say).python
    return str(python), variables(stack, environments.cache)


def _start(python: str, environment: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [python, "-m", "harness.conformance.check_process"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _how(end: str) -> str:
    word, _, number = end.partition(" ")
    if word == "exit":
        return f"ended the process with exit status {number}"
    with suppress(ValueError):
        return f"died of {signal.Signals(int(number)).name}"
    return f"died of signal {number}"


def _text(file: Path) -> str:
    return file.read_bytes().decode(errors="replace")
