"""The last line of a report: a SHA-256 of all before it, so that a flipped bit is no other answer.

It is a processing instruction of XML, which other readers of JUnit pass over.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import BinaryIO

_SEAL = "\n<?xla-harness sha256={}?>\n"
_LENGTH = len(_SEAL.format("0" * 64))
_PATTERN = re.compile(_SEAL.replace("?", r"\?").format("([0-9a-f]{64})").encode())


def sealed(text: str) -> str:
    """Return the text of a report with its seal."""
    return text + _SEAL.format(hashlib.sha256(text.encode()).hexdigest())


def seal(path: Path) -> None:
    """Add the seal to a report that another wrote; what is no file, as /dev/stdout, has none."""
    if path.is_file():
        with path.open("rb+") as file:
            digest = hashlib.file_digest(file, "sha256")
            file.write(_SEAL.format(digest.hexdigest()).encode())


class Seal:
    """Compares what is read of a report with its seal, if it has one."""

    def __init__(self, file: BinaryIO) -> None:
        """Look for it at the end of ``file``, which stays where it is."""
        self._digest, self._left, self._expected = hashlib.sha256(), 0, ""
        if not file.seekable():
            return
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - _LENGTH, 0))
        if match := _PATTERN.fullmatch(file.read()):
            self._expected, self._left = match[1].decode(), size - _LENGTH
        file.seek(0)

    def update(self, chunk: bytes) -> None:
        """Take the next bytes of the file."""
        self._digest.update(chunk[: self._left])
        self._left -= min(self._left, len(chunk))

    @property
    def is_broken(self) -> bool:
        """Return whether the bytes are not those that were sealed."""
        return self._digest.hexdigest() != self._expected if self._expected else False
