"""The component versions that make up the stack under test."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version

COMPONENTS = ("torch", "torch_xla", "jax", "jaxlib", "libtpu")


def installed(distribution: str) -> str:
    """The installed version, or ``not installed``."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"


@cache
def stack_versions() -> dict[str, str]:
    """Component name to version, Python's included."""
    return {"python": platform.python_version()} | {name: installed(name) for name in COMPONENTS}
