"""Copies the output of several processes line by line, each with what says whose it is."""

from __future__ import annotations

import os
import selectors
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO

_READ = 1 << 16
_LONGEST_LINE = 1 << 16


@dataclass(eq=False)
class _Pipe:
    """``rest`` is what came behind the last whole line."""

    descriptor: int
    prefix: bytes
    out: BinaryIO
    before: Callable[[], object]
    rest: bytes = b""

    def copy(self) -> int | None:
        """Copy what has come: how many bytes; 0 when it is closed, None when none are there."""
        try:
            read = os.read(self.descriptor, _READ)
        except BlockingIOError:
            return None
        *lines, self.rest = (self.rest + read).split(b"\n")
        if len(self.rest) > _LONGEST_LINE:
            lines.append(self.rest)
            self.rest = b""
        self._write(lines)
        return len(read)

    def flush(self) -> None:
        """Copy all that is there now, the last line's beginning too."""
        while self.copy():
            pass
        if self.rest:
            self._write([self.rest])
        self.rest = b""

    def _write(self, lines: list[bytes]) -> None:
        self.before()
        self.out.write(b"".join(self.prefix + line + b"\n" for line in lines))
        self.out.flush()


class Output:
    """Copies from pipes while something is waited for.

    Args:
        before: called when lines have come, before they are copied.
    """

    def __init__(self, before: Callable[[], object]) -> None:
        self._before = before
        self._selector = selectors.DefaultSelector()
        self._pipes: list[_Pipe] = []

    def add(self, descriptor: int, prefix: bytes, out: BinaryIO) -> None:
        """Copy the lines of a pipe to ``out``, with ``prefix`` in front of each."""
        os.set_blocking(descriptor, False)
        pipe = _Pipe(descriptor, prefix, out, self._before)
        self._pipes.append(pipe)
        self._selector.register(descriptor, selectors.EVENT_READ, pipe)

    def wake_for(self, descriptor: int) -> None:
        """Let ``copy`` return when the descriptor gets readable, once; it is closed then."""
        self._selector.register(descriptor, selectors.EVENT_READ)

    def copy(self, seconds: float) -> None:
        """Copy what there is, or what comes first within so many seconds."""
        for key, _ in self._selector.select(max(seconds, 0)):
            if key.data is None:
                self._selector.unregister(key.fd)
                os.close(key.fd)
            elif key.data.copy() == 0:
                self._selector.unregister(key.fd)

    def flush(self) -> None:
        """Copy what is left, without waiting: who has inherited a pipe may keep it open."""
        for pipe in self._pipes:
            pipe.flush()
