"""Recorded inputs that come with xla-harness: ``fixtures/`` of a clone, or a wheel's part of it."""

from __future__ import annotations

from pathlib import Path


def shipped(name: str) -> Path | None:
    """Return the file or folder of ``fixtures/`` with that name; None where it was not installed.

    harness/lanes/virtual/plugin/build.py says what a wheel has.
    """
    # A stack's environment reaches this package through a link.
    package = Path(__file__).resolve().parent
    places = (package / "fixtures" / name, package.parent / "fixtures" / name)
    return next((place for place in places if place.exists()), None)
