"""Keeps output of any size within a bounded size."""

from __future__ import annotations


class BoundedBuffer:
    """Keeps the first and the last half of ``limit`` bytes of what it is fed."""

    def __init__(self, limit: int) -> None:
        self._half = max(limit // 2, 1)
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0

    def feed(self, data: bytes) -> None:
        """Append ``data``."""
        self._total += len(data)
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * self._half:  # trim seldom: each trim moves the whole tail
            del self._tail[: -self._half]

    def take(self) -> str:
        """Return what was fed since the last call, cut in the middle with a note; start anew."""
        del self._tail[: -self._half]
        cut = self._total - len(self._head) - len(self._tail)
        note = f"\n[... {cut:,} bytes cut ...]\n".encode() if cut else b""
        text = bytes(self._head + note + self._tail).decode(errors="replace")
        self._head.clear()
        self._tail.clear()
        self._total = 0
        return text
