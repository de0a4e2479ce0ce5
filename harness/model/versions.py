"""The component versions that make up the stack under test."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from harness.frameworks import FRAMEWORKS

# libtpu is no framework's: torch_xla and JAX both load it.
_SHARED = ("libtpu",)
# What every history has a column for, and so the same on every machine. The versions of a framework
# that another package adds are properties of each case.
COMPONENTS = (
    *dict.fromkeys(package for own in FRAMEWORKS.own() for package in own.packages),
    *_SHARED,
)


def installed(distribution: str) -> str:
    """The installed version, or ``not installed``."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"


@cache
def stack_versions() -> dict[str, str]:
    """Component name to version: Python's, those of ``COMPONENTS`` and of all other frameworks."""
    added = (package for framework in FRAMEWORKS.values() for package in framework.packages)
    names = dict.fromkeys((*COMPONENTS, *added))
    return {"python": platform.python_version()} | {name: installed(name) for name in names}
