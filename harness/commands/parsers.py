"""What the commands share of the command line."""

from __future__ import annotations

import argparse
from typing import TypeAlias

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def names(text: str) -> tuple[str, ...]:
    """A list as it is written on the command line: ``cpu,virtual-tpu``."""
    return tuple(part.strip() for part in text.split(",") if part.strip())
