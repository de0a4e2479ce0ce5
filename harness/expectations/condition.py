"""Stacks on which an entry applies: a PEP 440 range of versions for each component it names."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from harness.errors import BadInputError
from harness.model.chosen_plugin import COMPONENT
from harness.model.versions import COMPONENTS

KEYS = ("python", *COMPONENTS, COMPONENT)
Versions = Mapping[
    str, str
]  # component to version, as harness.model.versions.stack_versions() has them


@dataclass(frozen=True)
class Condition:
    """Ranges by component, all of which must hold. Without any, it holds everywhere."""

    ranges: tuple[tuple[str, str], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __str__(self) -> str:
        return ", ".join(f"{component} {text}" for component, text in self.ranges)

    def holds(self, versions: Versions) -> bool:
        """Return whether every component is in its range; one not installed is in none."""
        return all(contains(text, versions.get(component, "")) for component, text in self.ranges)


ALWAYS = Condition()


@cache
def version_of(text: str) -> Version | None:
    """Return the version, or None for another text: ``not installed``, a wheel's path, a range."""
    try:
        return Version(text)
    except InvalidVersion:
        return None


@cache
def contains(text: str, version: str) -> bool:
    """Return whether the range has the version; nightlies count, as most are pre-releases."""
    return version_of(version) is not None and SpecifierSet(text).contains(
        version, prereleases=True
    )


def read(where: str, data: Any, known: Sequence[Versions]) -> Condition:
    """Check an entry's key ``stack``; ``known`` are the stacks that there are.

    Raises:
        BadInputError: an unknown component, no PEP 440 range, or one that no stack can fulfil: no
            version does, or none of those in ``known`` and none newer than all of them.
    """
    if not (isinstance(data, dict) and data):
        raise BadInputError(f"{where}: key 'stack': expected a table, as {{ torch_xla = '<2.8' }}")
    for component, text in data.items():
        key = f"{where}: key 'stack.{component}'"
        if component not in KEYS:
            close = difflib.get_close_matches(component, KEYS, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise BadInputError(f"{key}: unknown component: {hint}expected {', '.join(KEYS)}")
        if not isinstance(text, str) or not text.strip():
            raise BadInputError(f"{key}: expected a range of versions, as '>=2.5,<2.8'")
        if reason := _never(text, component, known):
            raise BadInputError(f"{key}: {text!r}: {reason}")
    return Condition(tuple(data.items()))


def _never(text: str, component: str, known: Sequence[Versions]) -> str:
    """Explain why the range matches nothing; return "" if it may match."""
    try:
        specifiers = SpecifierSet(text)
    except InvalidSpecifier:
        return "expected PEP 440 ranges separated by commas, as '>=2.5,<2.8'"
    if specifiers.is_unsatisfiable():
        return "can never match: no version is in all of these ranges"
    there = {stack[component] for stack in known if version_of(stack.get(component, ""))}
    versions = sorted(there, key=Version)
    if not versions or any(contains(text, version) for version in versions):
        return ""
    newest = Version(versions[-1]).public
    # Not >newest, which leaves out its post-releases.
    if not (specifiers & SpecifierSet(f">={newest}")).is_unsatisfiable():
        return ""
    return (
        f"can never match: expected a range that has one of the stacks' versions "
        f"({', '.join(versions)}) or newer ones"
    )
