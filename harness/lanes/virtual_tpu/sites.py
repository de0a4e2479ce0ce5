"""Lines of the user's own code, as ranks tell where they are and programs where they come from."""

from __future__ import annotations

import sysconfig
from functools import cache
from pathlib import Path

# Folders of what calls tests, and ranks of theirs: what is outside of it is never the user's.
RUNNERS = ("/_pytest/", "/pluggy/", "/harness/isolation/")

# Before a site that is not the call's own, but where the script was meanwhile.
NEAR = "near "

_FOLDERS = sysconfig.get_paths()
# Of what is no user's code: generated functions, Python's own, installed packages, and ours.
_LIBRARIES = (
    "<",
    *(f"{Path(_FOLDERS[name])}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    f"{Path(__file__).parents[2]}/",
)


@cache  # asked of each frame at each program that ranks meet in
def is_users(file: str) -> bool:
    """Whether a file's code is the user's."""
    return not file.startswith(_LIBRARIES)


@cache
def is_runners(file: str) -> bool:
    """Whether a file's code calls tests."""
    return any(folder in file for folder in RUNNERS)
