"""What a child tells its supervisor: one JSON object a line."""

from __future__ import annotations

import json
import os
from typing import Any

Message = dict[str, Any]


def send(descriptor: int, message: Message) -> None:
    """Write ``message`` whole; blocks until the other side has read."""
    data = memoryview(json.dumps(message, default=repr).encode() + b"\n")
    while data:
        data = data[os.write(descriptor, data) :]


class Decoder:
    """Cuts a byte stream into messages; an unfinished one waits for its rest."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Message]:
        """The messages completed by ``data``."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines]
