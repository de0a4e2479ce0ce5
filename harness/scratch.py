"""Temporary folders and files. Those of a killed process are removed at the next start."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "xla-harness-scratch-"
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Scratch:
    """A temporary folder that a lock on itself keeps alive.

    The lock ends with the process, however that ends. So a folder without a lock is garbage.
    """

    def __init__(self) -> None:
        """Remove the folders of dead processes and make one. Raises OSError."""
        remove_abandoned()
        self._numbers = 0
        self._make()

    def folder(self) -> Path:
        """Return a new folder in this one, which is made anew if somebody has removed it.

        On a full disk there may be none at the path that comes back.
        """
        self._numbers += 1
        with suppress(OSError):
            if not is_at(self._lock, self.path):
                old = self._lock
                self._make()
                os.close(old)
            Path(self.path, str(self._numbers)).mkdir()
        return self.path / str(self._numbers)

    def leave(self) -> None:
        """Give up the lock's descriptor in a forked process: the lock is the parent's."""
        with suppress(OSError):
            os.close(self._lock)

    def close(self) -> None:
        """Remove the folder."""
        remove(self.path)
        self.leave()

    def _make(self) -> None:
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
            # Another process may have found it without a lock, and remove it or have done so.
            try:
                self._lock = os.open(self.path, _FLAGS | os.O_DIRECTORY)
            except FileNotFoundError:
                continue
            if _lock(self._lock) is not False and is_at(self._lock, self.path):
                return
            os.close(self._lock)


@contextmanager
def scratch() -> Iterator[Path]:
    """Make a temporary folder that is removed at the end."""
    own = Scratch()
    try:
        yield own.path
    finally:
        own.close()


def remove(path: Path) -> None:
    """Remove a file or a folder, as far as that is possible."""

    def retry(function: object, name: str, error: object) -> None:
        """Remove what a folder without permissions holds, too."""
        del function, error
        with suppress(OSError):
            Path(name).parent.chmod(stat.S_IRWXU)
            if Path(name).is_dir() and not Path(name).is_symlink():
                Path(name).chmod(stat.S_IRWXU)
                shutil.rmtree(name, ignore_errors=True)
            else:
                Path(name).unlink()

    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, onerror=retry)
        else:
            path.unlink()


def remove_abandoned() -> None:
    """Remove what this user's processes left that have ended without doing so."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            descriptor = os.open(path, _FLAGS)
            try:
                if os.fstat(descriptor).st_uid == os.geteuid() and _lock(descriptor):
                    remove(path)
            finally:
                os.close(descriptor)


def _lock(descriptor: int) -> bool | None:
    """Lock a file or folder: whether it was free; None where its file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def is_at(descriptor: int, path: Path) -> bool:
    """Return whether an open file or folder is still the one at the path."""
    try:
        there = path.lstat()
    except OSError:
        return False
    return os.path.samestat(there, os.fstat(descriptor))
