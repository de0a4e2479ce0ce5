"""The wheels that a stack takes from folders, and whether they are those that were resolved."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from harness.stacks.stack import Stack

_BLOCK = re.compile(r"^([A-Za-z0-9_.-]+)==([^\s;\\]+).*\n(?:[ \t].*\n?)*", re.MULTILINE)


def changed(stack: Stack, text: str) -> dict[str, str]:
    """Return the SHA-256 of each wheel that a constraint file with this text does not know.

    The key is the name of its package. A wheel of another version than the file has is not meant.
    """
    return {name: digest for name, _, digest, block in _meant(stack, text) if digest not in block}


def pinned(stack: Stack, path: Path) -> dict[str, str]:
    """Return the SHA-256 of each wheel that the constraint file has, by the wheel's file name."""
    text = path.read_text(encoding="utf-8")
    return {file.name: digest for _, file, digest, block in _meant(stack, text) if digest in block}


def without(text: str, names: Collection[str]) -> str:
    """Return the text of a constraint file without the packages of these canonical names."""
    return _BLOCK.sub(lambda m: "" if canonicalize_name(m[1]) in names else m[0], text)


def _meant(stack: Stack, text: str) -> Iterator[tuple[str, Path, str, str]]:
    """Yield each wheel of a version that the text has: package, file, SHA-256, part of the text."""
    blocks = {canonicalize_name(match[1]): match for match in _BLOCK.finditer(text)}
    compact = "".join(stack.python.split(".")[:2])
    for folder in stack.folders if blocks else ():
        for path in sorted(folder.glob("*.whl")):
            try:
                name, version, _, tags = parse_wheel_filename(path.name)
            except InvalidWheelFilename:
                continue
            if not any(t.interpreter in ("py3", f"cp{compact}") or t.abi == "abi3" for t in tags):
                continue
            if name in blocks and blocks[name][2] == str(version):
                yield name, path, _digest(path, path.stat().st_mtime_ns), blocks[name][0]


@cache
def _digest(path: Path, time: int) -> str:
    """Return the file's SHA-256; ``time`` is that of its last change."""
    del time
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
