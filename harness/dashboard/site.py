"""The folder of a site: the new pages are complete on the disk before the first old one goes."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from filelock import FileLock

from harness.errors import BadInputError

FIRST = "index.html"  # moved last, so that it never leads to a page that isn't there yet
_OWN = ".site"  # what publishing keeps for itself, beside the pages
_FORMAT = 1


class Site:
    """Publishes files into ``out`` as a context manager.

    A page is compared with the one on the disk and staged only if it differs. Leaving without an
    error moves what was staged, file by file by rename, the first page last; then pages that this
    night no longer has are removed. Disk full or a kill while staging changes nothing; a kill
    while moving leaves pages of both nights, each of them whole, and the next night completes it.

    Raises BadInputError for a folder that holds something else, and for one that can't be written.
    """

    def __init__(self, out: Path) -> None:
        self.out = out
        self._own = out / _OWN
        self._next = self._own / "next"
        self._keys: dict[str, str] = {}  # pages of this night: path to what it was made from
        self._old: dict[str, str] = {}
        self._staged: set[str] = set()

    def __enter__(self) -> Self:
        try:
            self._check()
            self._own.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(self._own / "lock")
            self._lock.acquire()
            shutil.rmtree(self._next, ignore_errors=True)  # of a night that was killed
            self._old = self._read()
        except OSError as error:
            raise BadInputError(f"--out {self.out}: {error.strerror}") from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._finish()
        except OSError as failed:
            raise self._unwritable(failed) from failed
        finally:
            shutil.rmtree(self._next, ignore_errors=True)
            self._lock.release()

    @property
    def written(self) -> int:
        """Number of files that are new or changed."""
        return len(self._staged)

    @property
    def pages(self) -> int:
        """Number of files of the site."""
        return len(self._keys)

    def has(self, path: str) -> bool:
        """Return whether this night has already published the file."""
        return path in self._keys

    def is_made_from(self, path: str, key: str) -> bool:
        """Return whether the page on the disk was made from ``key``; keep it if so."""
        if self._old.get(path) != key or not (self.out / path).is_file():
            return False
        self._keys[path] = key
        return True

    def write(self, path: str, content: str | bytes, key: str = "") -> None:
        """Stage a file; ``key`` names what it was made from, where that never changes."""
        data = content.encode("utf-8") if isinstance(content, str) else content
        self._keys[path] = key
        with suppress(OSError):
            if (self.out / path).read_bytes() == data:
                return
        target = self._next / path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as file:
                file.write(data)
        except OSError as error:
            raise self._unwritable(error) from error
        self._staged.add(path)

    def _check(self) -> None:
        if not self.out.exists():
            return
        if not self.out.is_dir():
            raise BadInputError(f"--out {self.out}: expected a folder")
        if any(self.out.iterdir()) and not self._own.is_dir():
            raise BadInputError(
                f"--out {self.out}: expected an empty folder or an older site, it holds other files"
            )

    def _read(self) -> dict[str, str]:
        try:
            data = json.loads((self._own / "pages.json").read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return {}
        pages = data.get("pages") if isinstance(data, dict) else None
        if not isinstance(pages, dict) or data.get("format") != _FORMAT:
            return {}
        return {path: key for path, key in pages.items() if _is_inside(path)}

    def _finish(self) -> None:
        # Until the end both nights' pages are ours: a killed night leaves none that nobody removes.
        kept = {path: "" if path in self._staged else key for path, key in self._old.items()}
        self._save(dict.fromkeys(self._keys, "") | kept)
        for path in sorted(self._staged, key=lambda path: path == FIRST):
            (self.out / path).parent.mkdir(parents=True, exist_ok=True)
            (self._next / path).replace(self.out / path)
        for path in self._old.keys() - self._keys.keys():
            (self.out / path).unlink(missing_ok=True)
        self._save(self._keys)

    def _save(self, pages: dict[str, str]) -> None:
        part = self._own / "pages.part"
        data = {"format": _FORMAT, "pages": dict(sorted(pages.items()))}
        with part.open("w", encoding="utf-8") as file:
            json.dump(data, file, indent=0)
            file.flush()
            os.fsync(file.fileno())
        part.replace(self._own / "pages.json")

    def _unwritable(self, error: OSError) -> BadInputError:
        return BadInputError(f"--out {self.out}: {error.strerror}: the old site is as it was")


def _is_inside(path: object) -> bool:
    """Return whether a path from the list of pages is safe: it is relative and never goes up."""
    return isinstance(path, str) and not path.startswith("/") and ".." not in path.split("/")
