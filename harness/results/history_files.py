"""Where a history's files are: a folder, or whatever fsspec reaches. Files appear whole or not."""

from __future__ import annotations

import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast
from urllib.parse import quote, unquote

from harness.errors import BadInputError

SUFFIX = ".parquet"
_NAME = re.compile(r"date=(?P<date>\d{4}-\d\d-\d\d)/stack=(?P<stack>[^/]+)/[^/.][^/]*\.parquet")
_URL = re.compile(r"[a-z][a-z0-9+.-]*://")


def name_of(date: str, stack: str, run: str) -> str:
    """A run's file below the history, as Hive writes partitions: no name leads elsewhere."""
    return f"date={date}/stack={quote(stack, safe='')}/{run}{SUFFIX}"


def stack_of(name: str) -> str:
    """The stack of a file so named."""
    return unquote(name.split("/")[1].removeprefix("stack="))


class Files(Protocol):
    """A history's files. Names are relative, with slashes."""

    def names(self) -> list[str]:
        """All of them, oldest first; files of other kinds are passed over."""
        ...

    def add(self, name: str, content: bytes) -> bool:
        """Add a file for good, whole, on the disk; False if it is there already.

        Raises BadInputError where nothing can be written.
        """
        ...

    def open(self, name: str) -> BinaryIO:
        """Open one for reading. Raises OSError."""
        ...

    def address(self, name: str) -> str:
        """What DuckDB calls it."""
        ...


def files_at(location: str | os.PathLike[str]) -> Files:
    """The files below a folder or a URL. Raises BadInputError for a URL of an unknown kind."""
    text = os.fspath(location)
    if text.startswith("file://"):
        text = unquote(text.removeprefix("file://"))
    if not _URL.match(text):
        return Folder(Path(text))
    try:
        from fsspec.core import url_to_fs

        system, path = url_to_fs(text)
    except (ImportError, ValueError) as error:
        raise BadInputError(f"{text}: expected a folder or an address: {error}") from error
    return Bucket(system, path.rstrip("/"), text)


@dataclass(frozen=True)
class Folder:
    """A folder on this machine."""

    path: Path

    def names(self) -> list[str]:
        found = list[str]()
        for folder, _, files in os.walk(self.path):
            below = Path(folder).relative_to(self.path).as_posix()
            found += [f"{below}/{file}" for file in files]
        return sorted(name for name in found if _NAME.fullmatch(name))

    def add(self, name: str, content: bytes) -> bool:
        target = self.path / name
        if target.exists():
            return False
        try:
            made = _folders(target.parent)
            self._write(target, content)
            for folder in (target.parent, *made):
                _sync(folder)
        except FileExistsError:
            return False  # another recorder was faster, with the same run
        except OSError as error:
            raise BadInputError(f"{target}: can't be written: {error.strerror}") from error
        return True

    def _write(self, target: Path, content: bytes) -> None:
        # A killed recorder leaves this file: its name begins with a dot and is nobody's.
        part = target.parent / f".{target.stem}.{secrets.token_hex(4)}.part"
        try:
            with part.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            _link(part, target)
        finally:
            part.unlink(missing_ok=True)

    def open(self, name: str) -> BinaryIO:
        return (self.path / name).open("rb")

    def address(self, name: str) -> str:
        return str(self.path / name)


@dataclass(frozen=True)
class Bucket:
    """A file system of fsspec, whose writes are whole or not at all, as object stores' are."""

    system: Any
    root: str
    url: str

    def names(self) -> list[str]:
        self.system.invalidate_cache()
        try:
            found = self.system.find(self.root)
        except FileNotFoundError:
            return []
        below = [path.removeprefix(self.root).lstrip("/") for path in found]
        return sorted(name for name in below if _NAME.fullmatch(name))

    def add(self, name: str, content: bytes) -> bool:
        path = f"{self.root}/{name}"
        try:
            if self.system.exists(path):
                return False
            self.system.makedirs(path.rpartition("/")[0], exist_ok=True)
            self.system.pipe_file(path, content)
        except OSError as error:
            raise BadInputError(f"{self.url}/{name}: can't be written: {error}") from error
        return True

    def open(self, name: str) -> BinaryIO:
        return cast("BinaryIO", self.system.open(f"{self.root}/{name}", "rb"))

    def address(self, name: str) -> str:
        return str(self.system.unstrip_protocol(f"{self.root}/{name}"))


def _folders(folder: Path) -> list[Path]:
    """Make a folder; those in which a new entry must reach the disk with it."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    return [each.parent for each in missing]


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _link(part: Path, target: Path) -> None:
    """Give the file its name, unless there is one of that name."""
    try:
        os.link(part, target)
    except FileExistsError:
        raise
    except OSError:  # a file system without links; equal names have equal content
        part.replace(target)
