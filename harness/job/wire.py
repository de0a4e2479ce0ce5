"""Connections between the workers of a job: whoever has its token takes part, and nobody else.

One JSON object a line. The first says who it comes from, and proves it: ``{"token": …, "worker": 1,
"about": …}``, where ``about`` is the digest of what both sides must agree on. The answer is
``{"welcome": true}``, or ``{"refused": true}`` to another job's token. Until then a connection is a
stranger's: its lines are short, its time is short, and the oldest of many makes way for a new one.
What a worker says is still bounded and checked. No thread waits here: the caller may fork.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import selectors
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeGuard

from harness.errors import BadInputError
from harness.job.job import TOKEN, Job

Message = dict[str, Any]
Heard = tuple[int, Message | None]  # a worker's number, and what it said; None for its end

STRANGERS = 64  # at once
_STRANGER_SECONDS = 2.0  # to show the token
_STRANGER_LINE = 1024  # bytes
_DEPTH = 64  # of JSON
_DIGITS = 1000  # of a number
_BACKLOG = 128
_ATTEMPT = 5.0  # seconds for one connection
_RETRY = 0.05
_CHUNK = 1 << 16
# Matches at any quote, up to the string's end or the line's: its time grows with the line only.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.?[^"\\]*+)*+"?', re.DOTALL)
_BRACKET = re.compile(rb"[\[\]{}]")
_LONG_NUMBER = re.compile(rb"[0-9]{%d}" % (_DIGITS + 1))


class WireError(ValueError):
    """What came is no worker's words."""


def is_index(value: Any, count: int) -> TypeGuard[int]:
    """Whether ``value``, from outside, is one of the numbers from 0 to ``count - 1``."""
    return type(value) is int and 0 <= value < count


def digest(text: str) -> str:
    """A digest of what both sides must agree on."""
    return hashlib.sha256(text.encode()).hexdigest()


def encode(message: Message) -> bytes:
    """The message's line. Raises TypeError or ValueError for what JSON can't say."""
    return json.dumps(message).encode() + b"\n"


def decode(line: bytes) -> Message:
    """The message of a line. Raises WireError."""
    bare = _STRING.sub(b"", line)
    depth = 0
    for bracket in _BRACKET.finditer(bare):
        depth += 1 if bracket[0] in b"[{" else -1
        if depth > _DEPTH:
            raise WireError(f"expected JSON with at most {_DEPTH} levels")
    if _LONG_NUMBER.search(bare):
        raise WireError(f"expected numbers of at most {_DIGITS} digits")
    try:
        message = json.loads(line.decode())
    except ValueError as error:
        raise WireError(f"expected a line of JSON: {error}") from None
    if not isinstance(message, dict):
        raise WireError("expected a JSON object")
    return message


@dataclass(eq=False)
class Connection:
    """One side of a connection; ``worker`` is who the other one has proved to be."""

    socket: socket.socket
    limit: int = _STRANGER_LINE  # bytes of a line
    worker: int | None = None
    _rest: bytearray = field(default_factory=bytearray)
    _searched: int = 0

    def receive(self) -> bool:
        """Take in what has come, as long as the socket's own timeout; False at the end."""
        try:
            data = self.socket.recv(_CHUNK)
        except (TimeoutError, BlockingIOError):
            return True
        except OSError:
            return False
        self._rest += data
        return bool(data)

    def messages(self) -> Iterator[Message]:
        """What has come whole. Raises WireError for what is no message, or longer than allowed."""
        while True:
            end = self._rest.find(b"\n", self._searched)
            if (len(self._rest) if end < 0 else end) > self.limit:
                raise WireError(f"expected lines of at most {self.limit} bytes")
            self._searched = len(self._rest) if end < 0 else 0
            if end < 0:
                return
            line = bytes(self._rest[:end])
            del self._rest[: end + 1]
            yield decode(line)

    def messages_until(self, end: float) -> Iterator[Message]:
        """Each message as it comes, until ``end`` or the connection's. Raises WireError."""
        going_on = True
        while going_on and (left := end - time.monotonic()) > 0:
            self.socket.settimeout(left)
            going_on = self.receive()
            yield from self.messages()

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
        """What workers have said, by their numbers: first ``{"about": …}``; None for their end.

        Waits ``seconds`` at most, and returns earlier when anything happens, be it a stranger.
        """
        if self._strangers:
            seconds = min(seconds, min(self._strangers.values()) - time.monotonic())
        ready = [key.data for key, _ in self._selector.select(max(seconds, 0))]
        heard = [one for data in ready if data is not None for one in self._read(data)]
        now = time.monotonic()
        for stranger in [one for one, late in self._strangers.items() if late <= now]:
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
            except OSError:  # all have been accepted, or that one has gone already
                break
            accepted.setblocking(False)
            if len(self._strangers) == STRANGERS:
                self._drop(next(iter(self._strangers)))
            connection = Connection(accepted)
            self._strangers[connection] = time.monotonic() + _STRANGER_SECONDS
            self._selector.register(accepted, selectors.EVENT_READ, connection)
            heard += self._read(connection)  # a worker's token is here by now
        return heard

    def _read(self, connection: Connection) -> list[Heard]:
        heard: list[Heard] = []
        going_on = connection.receive()
        try:
            for message in connection.messages():
                if connection.worker is None:
                    heard.append(self._greet(connection, message))
                else:
                    heard.append((connection.worker, message))
        except WireError:
            going_on = False
        if not going_on:
            if connection.worker is not None:
                heard.append((connection.worker, None))
            self._drop(connection)
        return heard

    def _greet(self, connection: Connection, hello: Message) -> tuple[int, Message]:
        """Which worker a stranger is, and what it has come about. Raises WireError."""
        match hello:
            case {"token": str(token), "worker": worker, "about": str(about)} if (
                is_index(worker, self._job.count) and worker
            ):
                pass
            case _:
                raise WireError("expected a worker's token and number")
        if not hmac.compare_digest(token.encode(errors="replace"), self._job.token.encode()):
            connection.tell({"refused": True})
            raise WireError("expected the job's token")
        if worker in self.workers:
            raise WireError("expected a worker that is not connected")
        del self._strangers[connection]
        self.workers[worker] = connection
        connection.worker, connection.limit = worker, self._limit
        connection.tell({"welcome": True})
        return worker, {"about": about}

    def _drop(self, connection: Connection) -> None:
        self._strangers.pop(connection, None)
        if connection.worker is not None:
            self.workers.pop(connection.worker, None)
        with suppress(KeyError):
            self._selector.unregister(connection.socket)
        connection.socket.close()


def join(port: int, job: Job, about: str, limit: int, end: float) -> Connection | None:
    """A connection of this worker to the first one, tried until ``end``; None without one.

    Raises BadInputError when the first worker has another token.
    """
    hello = {"token": job.token, "worker": job.number, "about": about}
    while (left := end - time.monotonic()) > 0:
        with suppress(OSError):
            made = socket.create_connection((job.address[0], port), timeout=min(left, _ATTEMPT))
            connection = Connection(made)
            connection.tell(hello)
            answer = _answer(connection, end)
            if "welcome" in answer:
                connection.limit = limit
                return connection
            made.close()
            if "refused" in answer:
                raise BadInputError(
                    f"{TOKEN}: worker {job.worker(0)} refused worker {job.worker(job.number)}: "
                    "expected the same on all workers of the job"
                )
        time.sleep(_RETRY)
    return None


def _answer(connection: Connection, end: float) -> Message:
    """The answer to a hello; nothing when the connection has ended without."""
    with suppress(WireError):
        return next(connection.messages_until(end), {})
    return {}
