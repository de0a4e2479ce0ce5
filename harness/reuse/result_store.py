"""A folder of bounded size for results, which processes share without waiting for each other."""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

FORMAT = "1"
MOST_BYTES = 2 << 30
_DIGEST = 64  # characters


class ResultStore:
    """Objects by kind and name, each a file that is replaced at once and checked by its digest."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FORMAT
        self.damaged = 0
        self.unwritten = ""  # why nothing can be written

    def read(self, kind: str, name: str) -> Any:
        """Return the object, or None if there is none. One that is damaged is removed."""
        path = self._path(kind, name)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        digest, data = content[:_DIGEST], content[_DIGEST:]
        if hashlib.sha256(data).hexdigest().encode() == digest:
            with suppress(zlib.error, ValueError, RecursionError):
                value = json.loads(zlib.decompress(data))
                with suppress(OSError):  # a store that is only read
                    os.utime(path)
                return value
        self.damaged += 1
        self.remove(kind, name)
        return None

    def write(self, kind: str, name: str, value: object) -> None:
        """Write the object; if that fails, ``unwritten`` says why, and nothing else is written."""
        if self.unwritten:
            return
        path = self._path(kind, name)
        data = zlib.compress(json.dumps(value).encode(), 1)
        part = path.with_name(f".{name}.{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            part.write_bytes(hashlib.sha256(data).hexdigest().encode() + data)
            part.replace(path)
        except OSError as error:
            self.unwritten = f"{self._folder}: {error.strerror}"
            with suppress(OSError):
                part.unlink(missing_ok=True)

    def remove(self, kind: str, name: str) -> None:
        """Remove the object, if there is one."""
        with suppress(OSError):
            self._path(kind, name).unlink()

    def prune(self, most: int = MOST_BYTES) -> None:
        """Remove the objects that were not used for longest, until ``most`` bytes are left."""
        files = []
        for path in self._folder.rglob("*"):
            with suppress(OSError):  # another process prunes, too
                status = path.stat()
                if path.is_file():
                    files.append((status.st_mtime, status.st_size, path))
        excess = sum(size for _, size, _ in files) - most
        for _, size, path in sorted(files):
            if excess <= 0:
                break
            with suppress(OSError):
                path.unlink()
                excess -= size

    def _path(self, kind: str, name: str) -> Path:
        return self._folder / kind / name[:2] / name
