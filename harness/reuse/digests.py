"""Digests of files and folders, under names that are the same in another environment."""

from __future__ import annotations

import hashlib
import sysconfig
import tempfile
from collections.abc import Sequence
from functools import cached_property
from importlib.metadata import distributions
from pathlib import Path

import harness
from harness.model.provenance import record_digest

ABSENT = ""  # digest of what does not exist
PACKAGES = "packages"  # name under which the digest of all installed packages stands
SITE, PROJECT = "site:", "project:"


class Digests:
    """Digests of what a project's tests use; each file is read at most once."""

    def __init__(self, project: Path, sites: Sequence[Path] = ()) -> None:
        """``sites`` are folders of installed packages, by default those of this process."""
        self._project = str(project)
        paths = sysconfig.get_paths()
        own = sorted({paths["purelib"], paths["platlib"]})
        self._sites = tuple(map(str, sites or own))
        self._python = paths["stdlib"], paths["platstdlib"]
        self._harness = str(Path(harness.__file__).parent), str(_harness_folder())
        self._passing = "/proc/", "/sys/", "/dev/", f"{tempfile.gettempdir()}/"
        self._digests: dict[str, str] = {}

    def of(self, name: str) -> str:
        """Return the digest of a file, a folder's names or all packages; ABSENT if there is none.

        For an installed file it is the digest in its wheel's RECORD, if the file has the recorded
        size and is not younger than RECORD, which installers write last.
        """
        if name not in self._digests:
            self._digests[name] = self._digest(name)
        return self._digests[name]

    def name_of(self, path: str) -> str:
        """Return the name of a file on which results depend; "" for any other one.

        Python's own modules and the harness have none, since a result's key has their versions, and
        neither have temporary files, devices and what the kernel shows.
        """
        for site in self._sites:
            if path.startswith(f"{site}/"):
                return f"{SITE}{path[len(site) + 1 :]}"
        if self._is_within(path, self._harness) or self._is_within(path, self._python):
            return ""
        if path.startswith(f"{self._project}/"):
            return f"{PROJECT}{path[len(self._project) + 1 :]}"
        return "" if path.startswith(self._passing) else path

    def is_of_project(self, path: Path) -> bool:
        """Return whether the path is the project's folder or in it, and no installed file."""
        name = self.name_of(str(path))
        return name.startswith(PROJECT) or path == Path(self._project)

    @cached_property
    def package_names(self) -> list[str]:
        """The names of the installed packages, which plugins can be among."""
        return sorted({str(d.metadata["Name"]) for d in distributions(path=list(self._sites))})

    def _digest(self, name: str) -> str:
        if name == PACKAGES:
            return hashlib.sha256(repr(sorted(self._recorded.items())).encode()).hexdigest()
        path = self._path(name)
        try:
            status = path.stat()
            if path.is_dir():
                names = (entry.name for entry in path.iterdir() if entry.name != "__pycache__")
                return hashlib.sha256("\0".join(sorted(names)).encode()).hexdigest()
            digest, size, written = self._recorded.get(name, ("", -1, 0.0))
            if digest and status.st_size == size and status.st_mtime <= written:
                return digest
            return record_digest(str(path))
        except OSError:
            return ABSENT

    def _path(self, name: str) -> Path:
        if name.startswith(PROJECT):
            return Path(self._project, name.removeprefix(PROJECT))
        if name.startswith(SITE):
            places = [Path(site, name.removeprefix(SITE)) for site in self._sites]
            return next((place for place in places if place.exists()), places[0])
        return Path(name)

    @cached_property
    def _recorded(self) -> dict[str, tuple[str, int, float]]:
        """Digest and size of each installed file, and when its RECORD was written, by name."""
        recorded = {}
        for owner in distributions(path=list(self._sites)):
            rows = [row.rsplit(",", 2) for row in (owner.read_text("RECORD") or "").splitlines()]
            own = next((path for path, _, _ in rows if path.endswith("/RECORD")), "")
            record = Path(str(owner.locate_file(own)))
            written = record.stat().st_mtime if own and record.is_file() else 0.0
            for path, digest, size in rows:
                if digest and size:
                    recorded[f"{SITE}{path}"] = (digest, int(size), written)
        return recorded

    @staticmethod
    def _is_within(path: str, folders: tuple[str, ...]) -> bool:
        return any(path.startswith(f"{folder}/") for folder in folders)


def _harness_folder() -> Path:
    """Return the real folder of the harness: an environment of a stack sees it through a link."""
    return Path(harness.__file__).resolve().parent
