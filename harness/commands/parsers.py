"""What the commands share of the command line."""

from __future__ import annotations

import argparse
from datetime import datetime
from typing import TypeAlias

from harness.errors import BadInputError
from harness.results.history_names import parse_time

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def names(text: str) -> tuple[str, ...]:
    """A list as it is written on the command line: ``cpu,virtual-tpu``."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def time_of(text: str) -> datetime:
    """The time that ``--time`` says. Raises BadInputError for one that can't be."""
    try:
        return parse_time(text)
    except ValueError as error:
        raise BadInputError(f"--time: {error}") from error
