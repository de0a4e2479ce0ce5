"""The component versions that make up the stack under test."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from harness.frameworks import FRAMEWORKS
from harness.platforms import PLATFORMS

ABSENT = "not installed"
# What every history has a column for, and so the same on every machine. The versions of a framework
# that another package adds are properties of each case.
COMPONENTS = (
    *dict.fromkeys(package for own in FRAMEWORKS.own() for package in own.packages),
    *(package for own in PLATFORMS.own() for package in own.packages),
)


def installed(distribution: str) -> str:
    """Return the installed version, or ``ABSENT``."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ABSENT


def present(versions: Mapping[str, str]) -> dict[str, str]:
    """Return the components that are installed, with their versions."""
    return {name: text for name, text in versions.items() if text != ABSENT}


# What a stack is of, and ordered by: the later follows the earlier. A stack is of jax only if it
# has neither of the others, which bring a jax along.
LEADING = ("torch_xla", "torch_tpu", "jax")


def leading(versions: Mapping[str, str]) -> str:
    """Return the component of ``LEADING`` that is among these versions, or ""."""
    return next((name for name in LEADING if versions.get(name, ABSENT) not in ("", ABSENT)), "")


def named_by(versions: Mapping[str, str]) -> str:
    """Name a stack by its versions: ``2.9.0``, ``torch_tpu-0.2.0`` or, without a framework, ""."""
    name = leading(versions)
    return versions.get(name, "") if name in ("", LEADING[0]) else f"{name}-{versions[name]}"


@cache
def stack_versions() -> dict[str, str]:
    """Component name to version: Python's, those of ``COMPONENTS`` and of all other frameworks."""
    added = (package for framework in FRAMEWORKS.values() for package in framework.packages)
    names = dict.fromkeys((*COMPONENTS, *added))
    return {"python": platform.python_version()} | {name: installed(name) for name in names}
