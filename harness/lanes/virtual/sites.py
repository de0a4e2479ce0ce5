"""Lines of the user's own code, as ranks tell where they are and programs where they come from."""

from __future__ import annotations

import sysconfig
from functools import cache
from importlib.util import find_spec
from pathlib import Path

_HARNESS = Path(__file__).parents[2]


def _folders(package: str) -> list[str]:
    """Return the folders of a package, which may not be installed."""
    spec = find_spec(package)
    locations = spec.submodule_search_locations if spec else None
    return [f"{folder}/" for folder in locations or ()]


# Folders of what calls tests, and ranks of theirs: what is outside of it is never the user's.
RUNNERS = (*_folders("_pytest"), *_folders("pluggy"), f"{_HARNESS}/isolation/")

# Before a site that is not the call's own, but where the script was meanwhile.
NEAR = "near "

_PATHS = sysconfig.get_paths()
# Of what is no user's code: generated functions, Python's own, installed packages, and ours.
LIBRARIES = (
    "<",
    *(f"{Path(_PATHS[name])}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    f"{_HARNESS}/",
)


@cache  # asked of each frame at each program that ranks meet in
def is_users(file: str) -> bool:
    """Return whether a file's code is the user's."""
    return not file.startswith(LIBRARIES)


@cache
def is_runners(file: str) -> bool:
    """Return whether a file's code belongs to a test runner."""
    return file.startswith(RUNNERS)
