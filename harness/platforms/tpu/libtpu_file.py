"""Finds the stack's libtpu on the disk, without loading it."""

from __future__ import annotations

import mmap
import re
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement

_BUILT = re.compile(rb"Built on [A-Z][a-z]{2} [\w: ]{1,32} \(\d{10}\)")


def library() -> Path | None:
    """``libtpu.so`` of this Python; None for a stack without one, as the oldest pins are."""
    spec = find_spec("libtpu")
    paths = (Path(f) / "libtpu.so" for f in (spec.submodule_search_locations or [] if spec else []))
    return next((path for path in paths if path.exists()), None)


def build(path: Path) -> str:
    """Return the build in a ``libtpu.so``: a date, and in brackets its Unix time; or ""."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        match = _BUILT.search(data)
        return match[0].decode() if match else ""


def not_asked_for() -> str:
    """Return jax's requirement if another libtpu is installed than it pins, or "".

    An older libtpu can't read a newer jax's kernels, and its own error does not say so.
    """
    for text in metadata.requires("jax") or []:
        requirement = Requirement(text)
        if requirement.name not in {"libtpu", "libtpu-nightly"} or requirement.marker is None:
            continue
        if not requirement.marker.evaluate({"extra": "tpu"}):
            continue
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            wanted = f"{requirement.name}{requirement.specifier}"
            return f"jax {metadata.version('jax')} asks for {wanted}, and {version} is installed"
    return ""
