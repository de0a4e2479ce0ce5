"""The parent's side of one child: forks it, reads its messages and output, and sees how it ends."""

from __future__ import annotations

import os
import select
import selectors
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NoReturn

from harness.errors import BadInputError
from harness.isolation import libc, post_mortem
from harness.isolation.child import Endpoints
from harness.isolation.orphans import children, kill_orphans
from harness.isolation.post_mortem import Death
from harness.isolation.streams import BoundedBuffer
from harness.isolation.thread_limits import out_of_threads
from harness.messages import new_token
from harness.messages.case_messages import ANSWERS, LastAnswer, Taken
from harness.messages.framing import MOST_OF_A_READ, Packets, send
from harness.messages.typed import Message

GRACE = 2.0  # seconds a process gets to write its stacks, or to die of its signal
_QUIET = 0.05  # a crash dump is over when nothing came for this long
_DUMP_BYTES = 1 << 20
_READERS = ("stdout", "stderr", "crash")
_CRASH = b"Fatal Python error: "  # how faulthandler begins; anything else is not its dump


@dataclass(frozen=True)
class Phase:
    """A message of the child's with the output that came before it."""

    message: Message
    stdout: str
    stderr: str


@dataclass
class CommandResult:
    """Result of one command: the child's messages, and its death if it died."""

    phases: list[Phase] = field(default_factory=list)
    death: Death | None = None
    stdout: str = ""
    stderr: str = ""


class CaseProcess:
    """A forked process with its own pipes: ``run`` for each case, ``close`` at the end."""

    def __init__(
        self, main: Callable[[Endpoints], NoReturn], *, output_bytes: int, echo: bool
    ) -> None:
        pipes = [os.pipe() for _ in _READERS]
        own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        readers = [*(reader for reader, _ in pipes), own.detach()]
        writers = [*(writer for _, writer in pipes), other.detach()]
        names, token = (*_READERS, "messages"), new_token().encode()
        command_reader, self._commands = os.pipe()
        self._others = children()
        self.pid = fork()
        if self.pid == 0:
            for descriptor in (*readers, self._commands):
                os.close(descriptor)
            ends = dict(zip(names, writers, strict=True))
            main(Endpoints(**ends, commands=command_reader, token=token))
        for descriptor in (*writers, command_reader):
            os.close(descriptor)
        self._pidfd = os.pidfd_open(self.pid)
        self._fds = dict(zip(names, readers, strict=True))
        self._output = {name: BoundedBuffer(output_bytes) for name in ("stdout", "stderr")}
        self._echo = echo
        self._dump = BoundedBuffer(_DUMP_BYTES)
        self._end_of_dump = b""
        self._packets = Packets(token, ANSWERS)
        self._crashed = self._exited = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._pidfd, selectors.EVENT_READ)
        for descriptor in readers:
            os.set_blocking(descriptor, False)
            self._selector.register(descriptor, selectors.EVENT_READ)

    def run(self, command: Message, deadline: float) -> CommandResult:
        """Have the child do ``command``; returns when it is done, has died, or was found hanging
        after ``deadline`` seconds. After a death only ``close`` may be called.
        """
        self._send(command)
        result = CommandResult()
        end = time.monotonic() + deadline
        while True:
            for message in self._pump(end - time.monotonic()):
                result.phases.append(Phase(message, *self._take_output()))
                self._send(Taken())
                if isinstance(message, LastAnswer) and not self._crashed:
                    return result
            if self._crashed or self._exited or time.monotonic() >= end:
                result.death = self._autopsy(deadline)
                result.stdout, result.stderr = self._take_output()
                return result

    def close(self, grace: float = GRACE) -> None:
        """End the child with everything it started, and wait until all are gone.

        ``grace`` is how many seconds it gets to leave by itself.
        """
        if self._commands >= 0:
            os.close(self._commands)
            self._commands = -1
            self._pump_until(lambda: self._exited, grace)
        if self._pidfd >= 0:
            _kill_group(self.pid)
            self._signal(signal.SIGKILL)
            os.waitpid(self.pid, 0)
            kill_orphans(self._others)
            self._selector.close()
            for descriptor in (*self._fds.values(), self._pidfd):
                os.close(descriptor)
            self._pidfd = -1

    def _send(self, command: Message) -> None:
        with suppress(BrokenPipeError):  # it has died, which the next look at it will tell
            send(self._commands, command)

    def _take_output(self) -> tuple[str, str]:
        return self._output["stdout"].take(), self._output["stderr"].take()

    def _pump(self, timeout: float) -> list[Message]:
        """Wait at most ``timeout`` seconds for news and read all there is."""
        for key, _ in self._selector.select(max(timeout, 0)):
            if key.fd == self._pidfd:
                self._exited = True
                self._selector.unregister(self._pidfd)
        messages = self._messages()
        for name, buffer in self._output.items():
            data = self._drain(name)
            buffer.feed(data)
            if self._echo and data:
                stream = getattr(sys, name)
                stream.write(data.decode(errors="replace"))
                stream.flush()
        if dump := self._drain("crash"):
            self._dump.feed(dump)
            self._crashed = self._crashed or _CRASH in self._end_of_dump + dump
            self._end_of_dump = dump[-len(_CRASH) :]
        return messages

    def _messages(self) -> list[Message]:
        """Return the received messages. Stray bytes are counted, and noted in the case's output."""
        stray, messages = self._packets.stray, list[Message]()
        with suppress(BlockingIOError):
            while packet := os.read(self._fds["messages"], MOST_OF_A_READ):
                message = self._packets.feed(packet)
                messages += [message] if message else []
                if message or self._packets.stray - stray > _DUMP_BYTES:  # let others have a turn
                    break
            else:
                if self._has_hung_up("messages"):
                    self._unregister("messages")
        if count := self._packets.stray - stray:
            note = f"[... {count:,} bytes written to a descriptor of xla-harness were ignored ...]"
            self._output["stderr"].feed(f"{note}\n".encode())
        return messages

    def _has_hung_up(self, name: str) -> bool:
        """Return whether the other end is closed; an empty packet would not prove it."""
        poll = select.poll()
        poll.register(self._fds[name], 0)
        return bool(poll.poll(0))

    def _unregister(self, name: str) -> None:
        if self._fds[name] in self._selector.get_map():
            self._selector.unregister(self._fds[name])

    def _drain(self, name: str) -> bytes:
        data = bytearray()
        try:
            while chunk := os.read(self._fds[name], 1 << 18):
                data += chunk
                if len(data) > _DUMP_BYTES:  # a flood: let the deadline be looked at
                    return bytes(data)
            self._unregister(name)
        except BlockingIOError:
            pass
        return bytes(data)

    def _pump_until(self, condition: Callable[[], bool], seconds: float) -> None:
        end = time.monotonic() + seconds
        while not condition() and (left := end - time.monotonic()) > 0:
            self._pump(left)

    def _autopsy(self, deadline: float) -> Death:
        """Read the stacks of a process that crashed or hangs, and let it die."""
        hung = not (self._crashed or self._exited)
        native = post_mortem.native_stack(self.pid) if hung else ""
        if hung:
            self._signal(signal.SIGABRT)
            self._pump_until(lambda: self._crashed or self._exited, GRACE)
        self._read_rest_of_dump()
        if self._crashed and not self._exited and not hung:
            native = post_mortem.native_stack(self.pid)
        dump = self._dump.take()
        number = self._die(post_mortem.signal_of_dump(dump) or signal.SIGABRT)
        if hung:
            return post_mortem.hung(deadline, dump, native)
        return post_mortem.crashed(number, dump, native)

    def _read_rest_of_dump(self) -> None:
        end = time.monotonic() + GRACE
        while not self._exited and (start := time.monotonic()) < end:
            self._pump(_QUIET)
            if time.monotonic() - start >= _QUIET:
                return

    def _die(self, number: signal.Signals) -> int:
        """Let the waiting process die of its own signal; its exit status, or -signal."""
        if self._crashed and not self._exited:  # one that ignored the first signal gets no second
            self._signal(number)
            self._pump_until(lambda: self._exited, GRACE)
        if not self._exited:
            self._signal(signal.SIGKILL)
        info = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOWAIT)
        assert info is not None
        return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)


def fork() -> int:
    """Fork this process, with nothing in its buffers that both would write.

    Raises BadInputError when there can't be one more process.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    libc.flush_all()
    with warnings.catch_warnings():
        # Python 3.12 warns of any second thread; ForkGuard has checked which there are.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            return os.fork()
        except BlockingIOError as error:
            raise BadInputError(f"can't be started: {out_of_threads()}") from error


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
