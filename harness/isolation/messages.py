"""Messages between a case's process and its supervisor.

Commands go to the process as one JSON object a line. What it reports comes back through a socket
that keeps packets apart, because the case and all that it starts inherit the descriptor and may
write to it: a packet without the token of the conversation is not a message, and can't damage one.
"""

from __future__ import annotations

import json
import os
import secrets
import struct
from typing import Any

Message = dict[str, Any]

_TOKEN_BYTES = 16
_HEADER = struct.Struct("!II")  # the packets of the message that follow this one, its size in bytes
_MOST_OF_A_PACKET = 1 << 15  # bytes: a socket takes at least this much at once
MOST_OF_A_READ = 1 << 16  # bytes: more than any packet


def new_token() -> bytes:
    """What packets of one conversation begin with."""
    return secrets.token_bytes(_TOKEN_BYTES)


def send(descriptor: int, message: Message) -> None:
    """Write ``message`` as a line; blocks until the other side has read."""
    data = memoryview(json.dumps(message, default=repr).encode() + b"\n")
    while data:
        data = data[os.write(descriptor, data) :]


def send_packets(descriptor: int, token: bytes, message: Message) -> None:
    """Write ``message`` as packets to a socket; blocks until there is room for them."""
    data = json.dumps(message, default=repr).encode()
    parts = [data[i : i + _MOST_OF_A_PACKET] for i in range(0, len(data), _MOST_OF_A_PACKET)]
    for number, part in enumerate(parts, 1):
        os.write(descriptor, token + _HEADER.pack(len(parts) - number, len(part)) + part)


class Decoder:
    """Cuts a byte stream into messages; an unfinished one waits for its rest."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Message]:
        """The messages completed by ``data``."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines]


class Packets:
    """Joins packets to messages. ``stray`` counts the bytes of those that belong to none."""

    def __init__(self, token: bytes) -> None:
        self._token = token
        self._parts: list[bytes] = []
        self.stray = 0

    def feed(self, packet: bytes) -> Message | None:
        """The message that ``packet`` completes, if it does."""
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
        message: Message = json.loads(data)
        return message
