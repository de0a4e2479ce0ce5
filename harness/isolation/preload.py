"""Imports what cases need before the first of them is forked."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.errors import BadInputError
from harness.isolation.garbage import importing


@dataclass(frozen=True)
class Preload:
    """Modules to import once for all tests, if any of them uses one of the packages."""

    modules: Sequence[str]
    packages: Sequence[str] = ()  # none: whatever the tests use

    def is_used_by(self, programs: Iterable[str], loaded: Iterable[str]) -> bool:
        """Return whether a program names a package, or something has loaded one already."""
        return not self.packages or any(
            name in loaded or any(name in program for program in programs) for name in self.packages
        )


def loaded(packages: Iterable[str]) -> list[str]:
    """Return which of the packages this process has imported."""
    return [name for name in packages if name in sys.modules]


def preload(modules: Sequence[str]) -> None:
    """Import what cases need, once, and keep its memory shared with every child.

    A name with ``?`` behind it may be missing. Raises BadInputError when another one can't be
    imported.
    """
    with importing():
        for name in modules:
            _import(name)
        # Makes its table of all modules' files, with which a child that shows a traceback, or
        # registers an operator of torch, would begin: 0.1 s.
        inspect.getmodule(inspect.currentframe())


def _import(name: str) -> None:
    try:
        importlib.import_module(name.removesuffix("?"))
    except ImportError as error:
        if not name.endswith("?"):
            raise BadInputError(f"xla_preload: {name} can't be imported: {error}") from error
