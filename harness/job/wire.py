"""Connections between the workers of a job: whoever has its token takes part, and nobody else.

The messages are those of ``harness.messages.jobs``. The first one on a connection says who it comes
from, and proves it with the token. Until then a connection is a stranger's: its lines are short,
its time is short, and the oldest of many makes way for a new one. What a worker says is bounded and
checked all the same. No thread waits here: the caller may fork.
"""

from __future__ import annotations

import errno
import hashlib
import selectors
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from harness.errors import BadInputError
from harness.job.job import TOKEN, Job
from harness.messages import is_token
from harness.messages.framing import MOST_OF_A_READ, Lines, encode
from harness.messages.jobs import FROM_FIRST, TO_FIRST, Hello, Refused, Welcome
from harness.messages.typed import Message, MessageError

Heard = tuple[int, Message | None]  # a worker's number, and what it said; None for its end

STRANGERS = 64  # at once
_STRANGER_SECONDS = 2.0  # to show the token
_STRANGER_LINE = 1024  # bytes
_BACKLOG = 128
_ATTEMPT = 5.0  # seconds for one connection
_RETRY = 0.05
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)


def is_index(number: int, count: int) -> bool:
    """Return whether a number from outside is an index from 0 to ``count - 1``."""
    return 0 <= number < count


def digest(text: str) -> str:
    """Return a digest of what both sides must agree on."""
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(eq=False)
class Connection:
    """Side of a connection; ``worker`` is the index that the peer has proved to have."""

    socket: socket.socket
    lines: Lines
    worker: int | None = None

    def receive(self) -> bool:
        """Take in what has come, as long as the socket's own timeout; False at the end."""
        try:
            data = self.socket.recv(MOST_OF_A_READ)
        except (TimeoutError, BlockingIOError):
            return True
        except OSError:
            return False
        self.lines.feed(data)
        return bool(data)

    def messages_until(self, end: float) -> Iterator[Message]:
        """Yield messages as they arrive, until ``end`` or hang-up. Raises MessageError."""
        going_on = True
        while going_on and (left := end - time.monotonic()) > 0:
            self.socket.settimeout(left)
            going_on = self.receive()
            yield from self.lines.messages()

    def tell(self, *messages: Message, seconds: float = 1.0) -> None:
        """Send the messages; whoever does not take them in time loses the connection."""
        before = self.socket.gettimeout()
        try:
            self.socket.settimeout(max(seconds, _RETRY))
            self.socket.sendall(b"".join(map(encode, messages)))
            self.socket.settimeout(before)
        except OSError:
            with suppress(OSError):  # the next look at it finds its end
                self.socket.shutdown(socket.SHUT_RDWR)


class Listener:
    """The first worker's side: lets the others in, each once, and hears them.

    ``limit`` is how many bytes a worker's line may have. Raises OSError without the port.
    """

    def __init__(self, port: int, job: Job, limit: int) -> None:
        self._job, self._limit = job, limit
        self._server = socket.create_server(("", port), backlog=_BACKLOG + job.count)
        self._server.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ, None)
        self._strangers: dict[Connection, float] = {}  # when each is late, the oldest first
        self.workers: dict[int, Connection] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for connection in [*self._strangers, *self.workers.values()]:
            self._drop(connection)
        self._selector.close()
        self._server.close()

    def hear(self, seconds: float) -> list[Heard]:
        """Return the workers' messages by their numbers: ``Hello`` first, None for the end.

        Waits ``seconds`` at most, and returns earlier if anything happens, even from a stranger.
        """
        if self._strangers:
            seconds = min(seconds, min(self._strangers.values()) - time.monotonic())
        ready = [key.data for key, _ in self._selector.select(max(seconds, 0))]
        heard = [message for data in ready if data is not None for message in self._read(data)]
        now = time.monotonic()
        for stranger in [stranger for stranger, late in self._strangers.items() if late <= now]:
            self._drop(stranger)
        if None in ready:
            heard += self._accept()
        return heard

    def drop(self, worker: int) -> None:
        """End a worker's connection, if it has one, without a word."""
        if worker in self.workers:
            self._drop(self.workers[worker])

    def _accept(self) -> list[Heard]:
        heard: list[Heard] = []
        for _ in range(STRANGERS):
            try:
                accepted = self._server.accept()[0]
            except OSError as error:
                if error.errno not in _NO_DESCRIPTOR:  # all have been accepted, or it has gone
                    break
                if not self._strangers:
                    time.sleep(_RETRY)  # whoever waits there would be reported again at once
                    break
                self._drop(next(iter(self._strangers)))
                continue
            accepted.setblocking(False)
            if len(self._strangers) == STRANGERS:
                self._drop(next(iter(self._strangers)))
            connection = Connection(accepted, Lines(TO_FIRST, _STRANGER_LINE))
            self._strangers[connection] = time.monotonic() + _STRANGER_SECONDS
            self._selector.register(accepted, selectors.EVENT_READ, connection)
            heard += self._read(connection)  # a worker's token is here by now
        return heard

    def _read(self, connection: Connection) -> list[Heard]:
        heard: list[Heard] = []
        going_on = connection.receive()
        try:
            for message in connection.lines.messages():
                if connection.worker is None:
                    heard.append(self._greet(connection, message))
                else:
                    heard.append((connection.worker, message))
        except MessageError:
            going_on = False
        if not going_on:
            if connection.worker is not None:
                heard.append((connection.worker, None))
            self._drop(connection)
        return heard

    def _greet(self, connection: Connection, hello: Message) -> Heard:
        """Identify a new connection's worker; return it and its hello. Raises MessageError."""
        if not isinstance(hello, Hello) or not 0 < hello.worker < self._job.count:
            raise MessageError("expected a worker's token and number")
        if not is_token(hello.token, self._job.token):
            connection.tell(Refused())
            raise MessageError("expected the job's token")
        if hello.worker in self.workers:
            raise MessageError("expected a worker that is not connected")
        del self._strangers[connection]
        self.workers[hello.worker] = connection
        connection.worker, connection.lines.limit = hello.worker, self._limit
        connection.tell(Welcome())
        return hello.worker, hello

    def _drop(self, connection: Connection) -> None:
        self._strangers.pop(connection, None)
        if connection.worker is not None:
            self.workers.pop(connection.worker, None)
        with suppress(KeyError):
            self._selector.unregister(connection.socket)
        connection.socket.close()


def join(port: int, job: Job, about: str, limit: int, end: float) -> Connection | None:
    """Connect this worker to the first one, trying until ``end``; return None if that fails.

    Raises BadInputError when the first worker has another token.
    """
    hello = Hello(job.token, job.number, about)
    while (left := end - time.monotonic()) > 0:
        with suppress(OSError):
            made = socket.create_connection((job.address[0], port), timeout=min(left, _ATTEMPT))
            connection = Connection(made, Lines(FROM_FIRST, _STRANGER_LINE))
            connection.tell(hello)
            answer = _answer(connection, end)
            if isinstance(answer, Welcome):
                connection.lines.limit = limit
                return connection
            made.close()
            if isinstance(answer, Refused):
                raise BadInputError(
                    f"{TOKEN}: worker {job.worker(0)} refused worker {job.worker(job.number)}: "
                    "expected the same on all workers of the job"
                )
        time.sleep(_RETRY)
    return None


def _answer(connection: Connection, end: float) -> Message | None:
    """Return the answer to a hello, or None if the connection ended without one."""
    with suppress(MessageError):
        return next(connection.messages_until(end), None)
    return None
