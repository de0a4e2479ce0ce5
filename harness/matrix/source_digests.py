"""Digests of the sources that decide a cell's answer: each test file's, and that of all others."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import harness
from harness.matrix.home import (
    data,
    home_of,
    paths_in,
    project_of,
    python_path,
    sources,
)
from harness.matrix.project_imports import ProjectImports
from harness.model.case_id import file_of


@dataclass(frozen=True)
class SourceDigests:
    """Digests of what decides a run besides its stack: the harness, and the project.

    An edit of a test file concerns that file and the test files that import it, directly or not.
    Any other edit concerns all cases.
    """

    shared: str
    by_test_file: Mapping[str, str]  # as seen from the folder where pytest runs


def source_digests(arguments: Sequence[str], files: Sequence[str] = ()) -> SourceDigests:
    """Return the digests for the test files that the arguments name, or only for ``files``."""
    here = Path.cwd()
    project, home = project_of(arguments, here), home_of(arguments, here)
    given = tuple(Path(file_of(text)).resolve() for text in paths_in(arguments))
    imports = _imports(project)
    chosen = [home / file for file in files] or [
        path for path in imports.tests if any(path.is_relative_to(place) for place in given)
    ]
    by_test_file = {os.path.relpath(path, home): imports.digest(path) for path in sorted(chosen)}
    return SourceDigests(_shared(project, given, imports.tests), by_test_file)


def data_digest(arguments: Sequence[str], out: Path) -> str:
    """Return a digest of the times and sizes of the project's other files, which cases may read.

    What git ignores is left out, and what is in the project's folder that ``out`` is in.
    """
    project, out = project_of(arguments, Path.cwd()), out.resolve()
    if out.is_relative_to(project):
        out = project.joinpath(*out.relative_to(project).parts[:1])
    return _data(project, out)


@cache  # all cells of a command ask for it
def _data(project: Path, out: Path) -> str:
    digest = hashlib.sha256()
    for path in data(project):
        if not path.is_relative_to(out):
            with suppress(OSError):  # a link to nothing, or gone by now
                status = path.stat()
                digest.update(repr((path, status.st_size, status.st_mtime_ns)).encode())
    return digest.hexdigest()[:16]


class _TestImports:
    """Test files of a project, and which of them each one imports."""

    def __init__(self, project: Path) -> None:
        own = Path(harness.__file__).parent  # an edit of the harness concerns all cases
        every = {path for path in sources(project) if not path.is_relative_to(own)}
        folders = (folder for path in every for folder in path.parents)
        self._imports = ProjectImports(project, {*every, *folders}.__contains__)
        self.tests = frozenset(path for path in every if _is_test_file(path))
        self.digest = cache(self._digest)

    def _digest(self, path: Path) -> str:
        return _digest({path} | (self.tests & self._imports.all_of([path])))


_imports = cache(_TestImports)


@cache
def _shared(project: Path, given: Iterable[Path], tests: frozenset[Path]) -> str:
    places = [Path(harness.__file__).parent, project, *map(Path, python_path(os.environ))]
    places += [path for path in given if not path.is_relative_to(project)]
    every = (path for place in places for path in _files_in(place))
    return _digest(path for path in every if path not in tests)


def _files_in(place: Path) -> Iterable[Path]:
    return [place] if place.is_file() else sources(place)


def _is_test_file(path: Path) -> bool:
    """Return whether pytest takes the file for one of tests, unless it is configured otherwise."""
    return path.suffix == ".py" and (path.name.startswith("test_") or path.stem.endswith("_test"))


def _digest(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(f"{path.name}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]
