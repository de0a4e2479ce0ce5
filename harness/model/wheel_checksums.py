"""The wheels of somebody's own that this environment was made with, by checksum.

A wheel that is built again often keeps its version, so a version does not say what ran.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

PROPERTY = "wheels"  # of a report
MANIFEST = "stack.json"  # in a stack's environment, written by harness.stacks.environments
_ENTRY = re.compile(r"([\w.+!-]+\.whl) sha256:([0-9a-f]{64})")


@cache
def installed_wheels() -> Mapping[str, str]:
    """Return the SHA-256 of each such wheel by its file name; {} outside a stack's environment."""
    try:
        data = json.loads(Path(sys.prefix, MANIFEST).read_text(encoding="utf-8"))
        return {str(name): str(digest) for name, digest in data.get("wheels", {}).items()}
    except (OSError, ValueError, AttributeError):
        return {}


def wheels_property() -> dict[str, str]:
    """Return the property of a report that names them; {} when there are none."""
    digests = installed_wheels()
    text = "; ".join(f"{name} sha256:{digest}" for name, digest in sorted(digests.items()))
    return {PROPERTY: text} if text else {}


def read_property(text: str) -> dict[str, str]:
    """Return what the property says: the SHA-256 of each wheel by the name of its package."""
    return {name.partition("-")[0]: digest for name, digest in _ENTRY.findall(text)}
