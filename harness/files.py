"""Files that a reader or a kill finds as they were or as they shall be."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from harness.errors import BadInputError


def write(texts: Mapping[Path, str]) -> None:
    """Write all files, each at once: a reader or a kill finds the old text or the new one."""
    temporary = {path: path.with_name(f".{path.name}.{os.getpid()}") for path in texts}
    try:
        for path, text in texts.items():
            with temporary[path].open("w", encoding="utf-8", newline="") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            if path.exists():
                shutil.copymode(path, temporary[path])
        for path, other in temporary.items():
            other.replace(path)
    except OSError as error:
        raise BadInputError(f"{error.filename}: can't be written: {error.strerror}") from error
    finally:
        for other in temporary.values():
            other.unlink(missing_ok=True)
