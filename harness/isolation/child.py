"""The forked child: it runs one command after the other until its supervisor closes the pipe."""

from __future__ import annotations

import faulthandler
import io
import os
import resource
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from harness.isolation import libc
from harness.isolation.shutdown import forget_hooks
from harness.messages.case_messages import COMMANDS
from harness.messages.framing import MOST_OF_A_READ, Lines, send_packets
from harness.messages.typed import Message

_EX_SOFTWARE = 70  # sysexits.h
_LINE = 1 << 16  # bytes of a command
FATAL_SIGNALS = (
    signal.SIGSEGV,
    signal.SIGABRT,
    signal.SIGBUS,
    signal.SIGILL,
    signal.SIGFPE,
)


@dataclass(frozen=True)
class Endpoints:
    """The child's ends of the pipes to its supervisor, and the token of its messages."""

    stdout: int
    stderr: int
    crash: int
    messages: int
    commands: int
    token: bytes


@dataclass(frozen=True)
class Setup:
    """Settings that a child receives before its first case."""

    environment: dict[str, str | None]
    memory_bytes: int | None
    parent: int


class ForkedCopyError(BaseException):
    """Ends a process that a case made with ``os.fork`` and that returned from the test function.

    Such a copy must not report: only the original process reports the case. It is no Exception, so
    that nothing between the test and ``run_child`` takes it for a failure.
    """

    def __init__(self, status: int) -> None:
        super().__init__()
        self.status = status  # which its parent, the case, may wait for


Tell = Callable[[Message], None]
Serve = Callable[[Message, Tell], None]


def run_child(ends: Endpoints, setup: Setup, prepare: Callable[[], None], serve: Serve) -> NoReturn:
    """Set this process up for a case, call ``serve`` for each command, and exit.

    The interpreter's own shutdown is skipped: it takes a second. ``shutdown`` does what a test can
    see of it.
    """
    status = _EX_SOFTWARE
    try:
        os.setsid()
        libc.die_with_parent(setup.parent)
        libc.allow_tracing_by(setup.parent)
        _redirect(ends)
        _catch_crashes(ends.crash)
        forget_hooks()
        os.register_at_fork(after_in_child=_leave_crashes_to_the_case)
        _limit(setup.memory_bytes)
        set_environment(setup.environment)
        prepare()
        line = _Line(ends)
        while (command := line.receive()) is not None:
            serve(command, line.tell)
        status = 0
    except ForkedCopyError as copy:
        sys.stderr.flush()  # not C's streams: what they hold is the case's, which writes it too
        os._exit(copy.status)
    except BaseException:
        traceback.print_exc()
    finally:
        _flush()
        os._exit(status)


def _redirect(ends: Endpoints) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (ends.stdout, 1), (ends.stderr, 2)):
        os.dup2(source, target)
    libc.line_buffer_stdout()
    sys.stdout = sys.__stdout__ = _text_stream(1)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _text_stream(2)  # type: ignore[misc]


def _text_stream(descriptor: int) -> io.TextIOWrapper:
    raw = io.FileIO(descriptor, "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw), errors="backslashreplace", line_buffering=True, write_through=True
    )


def _catch_crashes(descriptor: int) -> None:
    faulthandler.disable()
    libc.pause_on(FATAL_SIGNALS)
    faulthandler.enable(file=descriptor, all_threads=True)


def _leave_crashes_to_the_case() -> None:
    """Restore the default signals in a process that the case forks; its crash isn't the case's."""
    faulthandler.disable()
    for number in FATAL_SIGNALS:
        signal.signal(number, signal.SIG_DFL)


def _limit(memory_bytes: int | None) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory_bytes is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))


def set_environment(environment: dict[str, str | None]) -> None:
    """Change this process's environment; None unsets a variable."""
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # a case closed it
            continue
    libc.flush_all()


class _Line:
    """The child's side of the conversation."""

    def __init__(self, ends: Endpoints) -> None:
        self._messages, self._commands = ends.messages, ends.commands
        self._token, self._pid = ends.token, os.getpid()
        self._lines = Lines(COMMANDS, _LINE)
        self._received: deque[Message] = deque()

    def receive(self) -> Message | None:
        """Return the next command, or None if there will be none."""
        while not self._received:
            data = os.read(self._commands, MOST_OF_A_READ)
            if not data:
                return None
            self._lines.feed(data)
            self._received += self._lines.messages()
        return self._received.popleft()

    def tell(self, message: Message) -> None:
        """Send a message and wait until the supervisor has taken it, with all output before it.

        Raises ForkedCopyError in a process that the case forked.
        """
        if os.getpid() != self._pid:
            raise ForkedCopyError(_EX_SOFTWARE)
        _flush()
        send_packets(self._messages, self._token, message)
        self.receive()
