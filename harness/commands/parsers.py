"""Parts of the command line that several commands share."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

from harness.commands import project
from harness.commands.output import STDOUT
from harness.errors import BadInputError

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
_BUDGET = re.compile(r"([0-9]{1,6})(s|m|h)")
_SECONDS = {"s": 1, "m": 60, "h": 3600}
_NUMBER = re.compile(r"-?[0-9]{1,18}")


def names(text: str) -> tuple[str, ...]:
    """Split a list that is written as ``cpu,virtual-tpu``."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def add_folder(parser: argparse.ArgumentParser, default: Path | str | None = None) -> None:
    """Add the option of every command that reads stacks.

    ``argparse.SUPPRESS`` as its default keeps what an outer command has parsed.
    """
    parser.add_argument(
        "--folder",
        type=Path,
        default=default or project.folder_of_stacks(),
        metavar="DIR",
        help=f"folder of stacks (default: {project.folder_of_stacks()}, ini xla_stacks)",
    )


def add_json(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """Add the option of every command that reports something, which ``output.answer`` obeys.

    ``argparse.SUPPRESS`` as its default keeps what an outer command has parsed.
    """
    parser.add_argument(
        "--json",
        nargs="?",
        type=output_file,
        default=default,
        const=STDOUT,
        metavar="FILE",
        help="the result as JSON: into FILE, or, without one, on standard output in its place",
    )


def whole_number(least: int, most: int) -> Callable[[str], int]:
    """Return an option type that accepts a whole number in that range."""

    def parse(text: str) -> int:
        if not _NUMBER.fullmatch(text) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(
                f"{text[:40]!r}: expected a number from {least} to {most:,}"
            )
        return int(text)

    return parse


def output_file(text: str) -> Path:
    """Parse the name of a file to write; refuse it before anything has run."""
    if not text or os.path.isdir(text):  # noqa: PTH112 - never raises, whatever the name
        raise argparse.ArgumentTypeError(f"{text!r}: expected a file, found a folder")
    if not os.path.isdir(os.path.dirname(text) or "."):  # noqa: PTH112, PTH120
        raise argparse.ArgumentTypeError(f"{text!r}: expected a file in a folder that exists")
    return Path(text)


def output_folder(text: str) -> Path:
    """Parse the name of a folder to write to, which is made when it is needed."""
    folder = text or "."
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder) or "."  # noqa: PTH120
    if not os.path.isdir(folder):  # noqa: PTH112
        raise argparse.ArgumentTypeError(f"{text!r}: expected a folder, {folder} is a file")
    return Path(text)


def budget_seconds(text: str) -> float:
    """Return the seconds of a ``--budget``, as ``90s`` or ``10m``. Raises BadInputError."""
    match = _BUDGET.fullmatch(text)
    if match is None or not int(match[1]):
        raise BadInputError(f"--budget {text!r}: expected seconds, minutes or hours, as 90s or 10m")
    return int(match[1]) * _SECONDS[match[2]]


def site_address(text: str, option: str = "--address") -> str:
    """Return the address of a site, with a slash at its end. Raises BadInputError for no URL."""
    if not text:
        return ""
    if text == "pages":  # where GitHub Pages puts the repository whose workflow this is
        owner, _, name = os.environ.get("GITHUB_REPOSITORY", "").partition("/")
        if not name:
            raise BadInputError(f"{option} pages: expected OWNER/NAME in GITHUB_REPOSITORY")
        return f"https://{owner.lower()}.github.io/{name}/"
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise BadInputError(f"{option} {text!r}: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadInputError(f"{option} {text!r}: expected https://HOST/PATH/")
    return text.rstrip("/") + "/"
