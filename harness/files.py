"""Files: read with clear errors, and written so that nobody finds half of one."""

from __future__ import annotations

import os
import shutil
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.errors import BadInputError


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file; raise BadInputError naming it."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise BadInputError(f"{path}: {error}") from error


def read_toml(path: Path) -> dict[str, Any]:
    """Return the data of a TOML file; raise BadInputError naming it."""
    return parse_toml(path, read_text(path))


def parse_toml(path: Path, text: str) -> dict[str, Any]:
    """Return the data of ``text``, the content of ``path``; raise BadInputError naming the file."""
    try:
        return tomllib.loads(text)
    except ValueError as error:  # TOMLDecodeError, and numbers of too many digits
        raise BadInputError(f"{path}: expected TOML: {error}") from error
    except RecursionError as error:
        raise BadInputError(f"{path}: expected TOML: nested too deeply") from error


def write(texts: Mapping[Path, str]) -> None:
    """Write all files, each at once: a reader or a kill finds the old text or the new one.

    A link, a device or a pipe, as /dev/stdout, is written to, not replaced. Raises BadInputError.
    """
    through = [p for p in texts if p.is_symlink() or (p.exists() and not p.is_file())]
    temporary = {
        path: path.with_name(f".{path.name}.{os.getpid()}") for path in texts if path not in through
    }
    path = Path()
    try:
        for path in through:
            path.write_text(texts[path], encoding="utf-8", newline="")
        for path, other in temporary.items():
            text = texts[path]
            with other.open("w", encoding="utf-8", newline="") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            if path.exists():
                shutil.copymode(path, other)
        for path, other in temporary.items():
            other.replace(path)
    except OSError as error:
        raise BadInputError(f"{path}: can't be written: {error.strerror}") from error
    finally:
        for other in temporary.values():
            other.unlink(missing_ok=True)
