"""The plugin's settings in the current folder's project, from the file that pytest reads."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import BadInputError
from harness.expectations.causes import read_findings
from harness.session.selection import read_cases
from harness.shipped import shipped
from harness.verdicts.upstream import Row

if TYPE_CHECKING:
    from harness.expectations import Expectations
    from harness.stacks.catalogue import Catalogue
    from harness.stacks.stack import Stack

# What a project has that sets nothing.
_USUAL = {
    "xla_expectations": "fixtures/expectations",
    "xla_stacks": "fixtures/stacks",
    "xla_durations": "fixtures/durations.json",
    "xla_upstream": "fixtures/upstream.toml",
}


def folder_of_stacks() -> Path:
    """Return the folder of setting ``xla_stacks``, which may be missing."""
    return _path("xla_stacks")


def catalogue(folder: Path) -> Catalogue:
    """Return the project's stacks; ``folder`` is the one that an option names, or the default.

    A project that has no folder and sets none has the stacks that came with xla-harness. Raises
    BadInputError for a folder that is named and missing.
    """
    from harness.stacks.catalogue import Catalogue

    is_named = "xla_stacks" in _settings(Path.cwd())[1] or folder != folder_of_stacks()
    return Catalogue(folder if is_named or folder.is_dir() else None)


def folder_of_expectations() -> Path:
    """Return the folder of setting ``xla_expectations``, which may be missing."""
    return _path("xla_expectations")


def file_of_durations() -> Path:
    """Return the file of setting ``xla_durations``, which may be missing."""
    return _path("xla_durations")


def upstream_rows(path: Path | None = None) -> tuple[Row, ...]:
    """Return the rows of the file, by default that of setting ``xla_upstream``, or none without
    one.

    Raises BadInputError.
    """
    if path is None:
        path = _path("xla_upstream")
        if not path.exists():
            return ()
    from harness.verdicts.upstream_file import load

    return load(path)


def quick_cases() -> tuple[str, ...]:
    """Return the ids in the file of setting ``xla_quick``, if it is set. Raises BadInputError."""
    path = _settings(Path.cwd())[1].get("xla_quick")
    return read_cases(_path("xla_quick")) if path else ()


def expected_on(stack: Stack) -> Expectations | None:
    """Return a stack's expectations, or None if the project has none. Raises BadInputError."""
    from harness.expectations import Expectations
    from harness.stacks.catalogue import versions_of

    folder = folder_of_expectations()
    if not folder.is_dir():
        return None
    entries = Expectations.load(folder, findings=findings()).entries
    return Expectations(entries, versions_of(stack))


def declared(stacks: Path) -> Expectations:
    """Return the project's expectations, checked against those of its folder of stacks.

    A project that has none and sets none has those that came with xla-harness, of its suites.
    Raises BadInputError.
    """
    from harness.expectations import Expectations
    from harness.stacks.catalogue import known_versions

    folder = folder_of_expectations()
    came = shipped("expectations")
    if came and not folder.is_dir() and "xla_expectations" not in _settings(Path.cwd())[1]:
        return Expectations.load(came)
    return Expectations.load(
        folder, known_versions(stacks if stacks.is_dir() else None), findings()
    )


def findings() -> frozenset[str] | None:
    """Return the findings of setting ``xla_findings``, or None without it. Raises BadInputError."""
    path = _settings(Path.cwd())[1].get("xla_findings")
    return read_findings(_path("xla_findings") if path else None)


def _path(name: str) -> Path:
    root, settings = _settings(Path.cwd())
    path = root / str(settings.get(name) or _USUAL.get(name, ""))
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


@cache
def _settings(folder: Path) -> tuple[Path, dict[str, str]]:
    """Return the project's root folder and its settings; raise BadInputError if they are broken."""
    import pytest
    from _pytest.config.findpaths import locate_config

    try:
        root, _, settings, *_ = locate_config(folder, [folder])
    except pytest.UsageError as error:
        raise BadInputError(str(error)) from error
    # Each value is an object since pytest 9, and plain before.
    values = {name: getattr(value, "value", value) for name, value in settings.items()}
    return root or folder, {n: os.fspath(v) for n, v in values.items() if isinstance(v, str)}
