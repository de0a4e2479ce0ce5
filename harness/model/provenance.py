"""Components that are not what was released: imported from elsewhere, or changed in place.

A patched framework keeps its version number, so a result must not pass for one of the release.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from harness.model.versions import COMPONENTS

PROPERTY = "modified"  # of a report
_UNCHECKED = {"torch"}  # 12,000 files; looking at each would take longer than all the others
_SUFFIXES = (".py", ".so")
_NAMED = 3


@dataclass(frozen=True)
class Modified:
    """A component that is not the released one; ``place`` is a folder or an address."""

    name: str
    version: str
    place: str
    why: str

    def __str__(self) -> str:
        return f"{self.name} {self.version} from {self.place} ({self.why})"


@cache
def modified_components() -> tuple[Modified, ...]:
    """Return the components of this process that differ from what their distribution installed.

    Nothing is imported: a component that is not imported yet is looked up on ``sys.path``. For
    torch only the place is compared, for the others also each file with the installer's record.
    """
    return tuple(modified for name in COMPONENTS if (modified := _modified(name)) is not None)


def modified_property() -> dict[str, str]:
    """Return the property of a report that names modified components; {} if there are none."""
    modified = modified_components()
    return {PROPERTY: "; ".join(map(str, modified))} if modified else {}


def _modified(name: str) -> Modified | None:
    place = _place(name)
    if place is None:
        return None
    try:
        owner = distribution(name)
    except PackageNotFoundError:
        return Modified(name, "of unknown version", str(place), "not an installed distribution")
    address = _direct_url(owner)
    why = _why(owner, name, place)
    if address and not why:
        return Modified(name, owner.version, address, "not from an index of packages")
    return Modified(name, owner.version, str(place), why) if why else None


def _why(owner: Distribution, name: str, place: Path) -> str:
    """Describe how the folder differs from the installed distribution; "" if it does not."""
    if place.resolve() != Path(str(owner.locate_file(name))).resolve():
        return "not the installed distribution"
    if owner.read_text("RECORD") is None:
        return "a source tree"
    changed = [] if name in _UNCHECKED else list(_changed(owner))
    if not changed:
        return ""
    more = f" and {len(changed) - _NAMED} more" if len(changed) > _NAMED else ""
    return f"changed since it was installed: {', '.join(changed[:_NAMED])}{more}"


def _place(name: str) -> Path | None:
    """Return the folder from which ``import name`` takes the module, or None."""
    module = sys.modules.get(name)
    try:
        spec = module.__spec__ if module is not None else find_spec(name)
    except ValueError:  # a module that was made up, without a spec
        return None
    if spec is None:
        return None
    if spec.origin and spec.origin != "namespace":
        return Path(spec.origin).parent
    folders = list(spec.submodule_search_locations or ())
    return Path(folders[0]) if folders else None


def _direct_url(owner: Distribution) -> str:
    """Return the address that PEP 610 records, without a user's name or password."""
    try:
        data = json.loads(owner.read_text("direct_url.json") or "{}")
        address = urlsplit(str(data.get("url", "")))
    except (ValueError, AttributeError):
        return ""
    if not address.scheme:
        return ""
    return address._replace(netloc=address.netloc.rpartition("@")[2]).geturl()


def _changed(owner: Distribution) -> Iterator[str]:
    """Yield the files whose size or hash differs from RECORD.

    A hash is computed only if a file is younger than RECORD, which installers write last.
    """
    base = str(owner.locate_file(""))
    rows = [row.rsplit(",", 2) for row in (owner.read_text("RECORD") or "").splitlines()]
    record = next(path for path, _, _ in rows if path.endswith("/RECORD"))
    written = Path(base, record).stat().st_mtime
    for path, digest, size in rows:
        if not digest or not path.endswith(_SUFFIXES):
            continue
        file = os.path.join(base, path)  # noqa: PTH118 - a Path for each would take twice as long
        try:
            status = os.stat(file)  # noqa: PTH116
        except OSError:
            yield path
            continue
        if status.st_size != int(size or -1) or (
            status.st_mtime > written and record_digest(file) != digest
        ):
            yield path


def record_digest(file: str) -> str:
    """Return the file's digest in the format of a wheel's RECORD file."""
    with Path(file).open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").digest()
    return f"sha256={base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"
