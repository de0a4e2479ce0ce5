"""Storage of a history: a folder or a file system of fsspec. Files are written atomically."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote

from harness.errors import BadInputError
from harness.history.names import SUFFIX, RunFile, SetAside, place_of

_URL = re.compile(r"[a-z][a-z0-9+.-]*://")


@dataclass(frozen=True)
class Listed:
    """The runs' files by their names, and those that can't be used."""

    places: tuple[RunFile, ...]  # in the order of their names
    set_aside: tuple[SetAside, ...] = ()

    @property
    def names(self) -> list[str]:
        """The runs' files."""
        return [place.name for place in self.places]


class Files(Protocol):
    """A history's files. Names are relative, with slashes."""

    def listed(self) -> Listed:
        """List the files of runs; skip files of other kinds.

        Raises BadInputError where nothing can be listed. A history that is not there has none.
        """
        ...

    def has(self, name: str) -> bool:
        """Return whether there is a file of that name."""
        ...

    def add(self, name: str, content: bytes) -> bool:
        """Add a file, whole and on the disk; False if there is one of that name.

        Raises BadInputError where nothing can be written.
        """
        ...

    def replace(self, name: str, content: bytes) -> None:
        """Put a file in the place of the one there, at once. Raises BadInputError likewise."""
        ...

    def read(self, name: str) -> bytes:
        """Return the contents of a file. Raises OSError."""
        ...

    def address(self, name: str) -> str:
        """Return the address by which DuckDB reads it."""
        ...


def files_at(location: str | os.PathLike[str]) -> Files:
    """Return the files below a folder or a URL. Raises BadInputError for an unknown kind of URL."""
    text = os.fspath(location)
    if text.startswith("file://"):
        text = unquote(text.removeprefix("file://"))
    try:
        text.encode()
    except UnicodeEncodeError as error:  # DuckDB takes no other address
        raise BadInputError(f"{text!r}: expected a folder or an address in UTF-8") from error
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
    """A folder on this machine. ``lasting`` is whether a power cut leaves what was added."""

    path: Path
    lasting: bool = True

    def listed(self) -> Listed:
        names, failed = list[str](), list[OSError]()
        for folder, folders, files in os.walk(self.path, onerror=failed.append):
            below = Path(folder).relative_to(self.path)
            # a folder in the place of a file can't be read, and is named like a damaged file
            names += [(below / each).as_posix() for each in (*files, *folders)]
        unlisted = []
        for error in failed:
            if Path(error.filename) != self.path:
                below = Path(error.filename).relative_to(self.path)
                unlisted.append(SetAside(below.as_posix(), f"can't be listed: {error.strerror}"))
            elif not isinstance(error, FileNotFoundError):
                raise BadInputError(f"{self.path}: can't be listed: {error.strerror}") from error
        return listed(names, unlisted)

    def has(self, name: str) -> bool:
        try:
            return (self.path / name).exists()
        except OSError:  # ``add`` then reports the cause
            return False

    def add(self, name: str, content: bytes) -> bool:
        try:
            return self._add(self.path / name, content)
        except OSError as error:
            raise self._unwritable(name, error) from error

    def replace(self, name: str, content: bytes) -> None:
        target = self.path / name
        try:
            part = self._part(target, content)
            try:
                part.replace(target)
            finally:
                part.unlink(missing_ok=True)
            self._sync(target.parent)
        except OSError as error:
            raise self._unwritable(name, error) from error

    def read(self, name: str) -> bytes:
        # Do not wait for a pipe of that name: it is read as an empty file.
        handle = os.open(self.path / name, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as file:
            return file.read() or b""

    def address(self, name: str) -> str:
        return str(self.path / name)

    def _add(self, target: Path, content: bytes) -> bool:
        made = _folders(target.parent)
        new = not target.exists()
        if new:
            part = self._part(target, content)
            try:
                new = _link(part, target)
            finally:
                part.unlink(missing_ok=True)
        # Sync also if the file was there: another recorder may have given it its name a moment
        # ago, and may have been killed before it could sync the folder.
        self._sync(target.parent, target.parent.parent, self.path, *made)
        return new

    def _part(self, target: Path, content: bytes) -> Path:
        """Write the content to a temporary file. If killed, it stays; hidden files are ignored."""
        part = target.parent / f".{target.stem}.{secrets.token_hex(4)}.part"
        try:
            with part.open("xb") as file:
                file.write(content)
                if self.lasting:
                    file.flush()
                    os.fsync(file.fileno())
        except OSError:
            part.unlink(missing_ok=True)
            raise
        return part

    def _sync(self, *folders: Path) -> None:
        for folder in dict.fromkeys(folders) if self.lasting else ():
            handle = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    def _unwritable(self, name: str, error: OSError) -> BadInputError:
        return BadInputError(f"{self.path / name}: can't be written: {error.strerror}")


@dataclass(frozen=True)
class Bucket:
    """A file system of fsspec, whose writes are whole or not at all, as object stores' are."""

    system: Any
    root: str
    url: str

    def listed(self) -> Listed:
        self.system.invalidate_cache()
        try:
            paths = self.system.find(self.root)
        except FileNotFoundError:
            return Listed(())
        except OSError as error:
            raise BadInputError(f"{self.url}: can't be listed: {error}") from error
        return listed([path.removeprefix(self.root).lstrip("/") for path in paths])

    def has(self, name: str) -> bool:
        return bool(self.system.exists(f"{self.root}/{name}"))

    def add(self, name: str, content: bytes) -> bool:
        if self.has(name):
            return False
        self.replace(name, content)
        return True

    def replace(self, name: str, content: bytes) -> None:
        path = f"{self.root}/{name}"
        try:
            self.system.makedirs(path.rpartition("/")[0], exist_ok=True)
            self.system.pipe_file(path, content)
        except OSError as error:
            raise BadInputError(f"{self.url}/{name}: can't be written: {error}") from error

    def read(self, name: str) -> bytes:
        return bytes(self.system.cat_file(f"{self.root}/{name}"))

    def address(self, name: str) -> str:
        return str(self.system.unstrip_protocol(f"{self.root}/{name}"))


def listed(names: Iterable[str], set_aside: Iterable[SetAside] = ()) -> Listed:
    """Return the runs among these names, ignoring hidden files and files of other kinds."""
    places, aside = list[RunFile](), list(set_aside)
    for name in sorted(names):
        if not name.endswith(SUFFIX) or any(part.startswith(".") for part in name.split("/")):
            continue
        try:
            places.append(place_of(name))
        except ValueError as error:
            aside.append(SetAside(name, str(error)))
    return Listed(tuple(places), tuple(aside))


def _folders(folder: Path) -> list[Path]:
    """Make a folder; those in which a new entry must reach the disk with it."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    return [each.parent for each in missing]


def _link(part: Path, target: Path) -> bool:
    """Give the file its name; False if another recorder was faster, with the same run."""
    try:
        os.link(part, target)
    except FileExistsError:
        return False
    except OSError:  # a file system without links; equal names have equal content
        part.replace(target)
    return True
