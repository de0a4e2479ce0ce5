"""A wheel built anew from what is installed, with another version and another source."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Callable
from importlib.metadata import distribution
from pathlib import Path


def rebuilt(name: str, version: str, folder: Path, edit: Callable[[str, str], str]) -> Path:
    """The wheel of an installed package; ``edit`` gets each Python file's name and text."""
    original = distribution(name)
    old, new = f"{name}-{original.version}.dist-info", f"{name}-{version}.dist-info"
    tag = next(t for t in (original.read_text("WHEEL") or "").splitlines() if t.startswith("Tag: "))
    target = folder / f"{name}-{version}-{tag.removeprefix('Tag: ')}.whl"
    folder.mkdir(parents=True, exist_ok=True)
    record = []
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as wheel:
        for file in original.files or ():
            path, place = Path(str(original.locate_file(file))), str(file).replace(old, new)
            if place.startswith(("..", f"{new}/RECORD")) or "__pycache__" in place:
                continue
            if place.startswith(new) and path.name in ("INSTALLER", "REQUESTED"):
                continue
            content = path.read_bytes()
            if path.suffix == ".py":
                content = edit(place, content.decode()).encode()
            elif place == f"{new}/METADATA":
                line = f"\nVersion: {original.version}\n"
                content = content.decode().replace(line, f"\nVersion: {version}\n").encode()
            wheel.writestr(_entry(place), content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            record.append(f"{place},sha256={digest.decode()},{len(content)}\n")
        wheel.writestr(_entry(f"{new}/RECORD"), "".join([*record, f"{new}/RECORD,,\n"]))
    return target


def _entry(name: str) -> zipfile.ZipInfo:
    """Without the time: the same content is the same wheel, which uv has in its cache."""
    return zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
