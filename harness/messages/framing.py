"""Convert messages to bytes and back: bounded JSON lines, and packets with a token."""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Callable, Iterator
from typing import Any

from harness.messages.typed import Message, MessageError, Vocabulary, as_data

DEPTH = 64  # levels of JSON in a line
_DIGITS = 1000  # of a number in a line
# Matches at any quote, up to the string's end or the line's: its time grows with the line only.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.?[^"\\]*+)*+"?', re.DOTALL)
_BRACKET = re.compile(rb"[\[\]{}]")
_LONG_NUMBER = re.compile(rb"[0-9]{%d}" % (_DIGITS + 1))

_HEADER = struct.Struct("!II")  # the packets of the message that follow this one, its size in bytes
_MOST_OF_A_PACKET = 1 << 15  # bytes: a socket takes at least this much at once
MOST_OF_A_READ = 1 << 16  # bytes: more than any packet


def encode(message: Message, default: Callable[[Any], Any] | None = None) -> bytes:
    """Return the message as a line; ``default`` converts values that JSON does not have.

    Raises TypeError or ValueError for such a value without a ``default``.
    """
    return json.dumps(as_data(message), default=default).encode() + b"\n"


def decode(line: bytes) -> Any:
    """Parse a line of JSON from outside, of bounded depth and numbers. Raises MessageError."""
    bare = _STRING.sub(b"", line)
    depth = 0
    for bracket in _BRACKET.finditer(bare):
        depth += 1 if bracket[0] in b"[{" else -1
        if depth > DEPTH:
            raise MessageError(f"expected JSON with at most {DEPTH} levels")
    if _LONG_NUMBER.search(bare):
        raise MessageError(f"expected numbers of at most {_DIGITS} digits")
    return _parsed(line)


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise MessageError(f"expected JSON: {error}") from None


class Lines:
    """Cuts a byte stream into messages; an unfinished line waits for its rest."""

    def __init__(self, vocabulary: Vocabulary, limit: int) -> None:
        """``limit`` is how many bytes a line may have; it may be changed between lines."""
        self.vocabulary, self.limit = vocabulary, limit
        self._rest = bytearray()
        self._searched = 0

    def feed(self, data: bytes) -> None:
        """Take in the next bytes of the stream."""
        self._rest += data

    def messages(self) -> Iterator[Message]:
        """Yield the complete messages. Raises MessageError for bad data or too long a line."""
        while True:
            end = self._rest.find(b"\n", self._searched)
            if (len(self._rest) if end < 0 else end) > self.limit:
                raise MessageError(f"expected lines of at most {self.limit} bytes")
            self._searched = len(self._rest) if end < 0 else 0
            if end < 0:
                return
            line = bytes(self._rest[:end])
            del self._rest[: end + 1]
            yield self.vocabulary.read(decode(line))


def send(descriptor: int, message: Message) -> None:
    """Write ``message`` as a line to a pipe; blocks until the other side has read."""
    data = memoryview(encode(message))
    while data:
        data = data[os.write(descriptor, data) :]


def send_packets(descriptor: int, token: bytes, message: Message) -> None:
    """Write ``message`` as packets to a socket; blocks until there is room for them.

    A value that JSON can't say, as a test's report may have, travels as its ``repr``.
    """
    data = encode(message, default=repr)
    parts = [data[i : i + _MOST_OF_A_PACKET] for i in range(0, len(data), _MOST_OF_A_PACKET)]
    for number, part in enumerate(parts, 1):
        os.write(descriptor, token + _HEADER.pack(len(parts) - number, len(part)) + part)


class Packets:
    """Joins packets to messages. ``stray`` counts the bytes of those that belong to none."""

    def __init__(self, token: bytes, vocabulary: Vocabulary) -> None:
        self._token, self._vocabulary = token, vocabulary
        self._parts: list[bytes] = []
        self.stray = 0

    def feed(self, packet: bytes) -> Message | None:
        """Return the message that ``packet`` completes, if there is one."""
        start = len(self._token) + _HEADER.size
        if not packet.startswith(self._token) or len(packet) < start:
            self.stray += len(packet)
            return None
        following, size = _HEADER.unpack_from(packet, len(self._token))
        if len(packet) != start + size:
            self.stray += len(packet)
            return None
        self._parts.append(packet[start:])
        if following:
            return None
        data, self._parts = b"".join(self._parts), []
        try:
            return self._vocabulary.read(_parsed(data))
        except MessageError:
            self.stray += len(data)
            return None
