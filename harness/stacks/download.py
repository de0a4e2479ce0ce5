"""Nightly wheels by their addresses, in which ``{date}`` is the day that they were built."""

from __future__ import annotations

import http.client
import shutil
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote, urlsplit

from packaging.utils import parse_wheel_filename

from harness.errors import BadInputError

PLACE = "{date}"
_TIMEOUT = 60  # seconds without a byte
_ABSENT = (403, 404)  # a bucket that can't be listed says 403 for what is not there


def download(addresses: Sequence[str], folder: Path, newest: date, days: int) -> list[Path]:
    """Download the wheels of the newest day that has them all: ``newest``, or ``days`` before it.

    They appear in the folder together. Raises BadInputError for an address that names no wheel, for
    a server that fails, and if no day has all.
    """
    for address in addresses:
        _name(address, newest)
    if newest - date.min < timedelta(days):
        raise BadInputError(f"{days} days before {newest}: expected a later day or fewer of them")
    dated = any(PLACE in address for address in addresses)
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder, prefix=".wheels-") as scratch:
        for day in (
            [newest - timedelta(days=back) for back in range(days + 1)] if dated else [newest]
        ):
            wheels = list(_all(addresses, Path(scratch), day))
            if len(wheels) == len(addresses):
                return [path.replace(folder / path.name) for path in wheels]
    raise BadInputError(
        f"{' '.join(addresses)}: expected wheels of one day, found no day with all of them from "
        f"{newest - timedelta(days=days if dated else 0)} to {newest}"
    )


def _all(addresses: Sequence[str], folder: Path, day: date) -> Iterator[Path]:
    """Yield the downloaded files of one day, up to the first that is missing."""
    for address in addresses:
        path = folder / _name(address, day)
        if not _fetched(address.replace(PLACE, f"{day:%Y%m%d}"), path):
            return
        yield path


def _name(address: str, day: date) -> str:
    try:
        parts = urlsplit(address.replace(PLACE, f"{day:%Y%m%d}"))
        name = unquote(parts.path).rpartition("/")[2]
        parse_wheel_filename(name)
    except ValueError as error:  # of an address, or InvalidWheelFilename
        raise BadInputError(f"{address}: expected the address of a wheel: {error}") from error
    if parts.scheme not in ("http", "https"):
        raise BadInputError(f"{address}: expected https://")
    return name


def _fetched(address: str, path: Path) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=_TIMEOUT) as answer, path.open("wb") as file:  # noqa: S310 - checked above
            shutil.copyfileobj(answer, file)
    except urllib.error.HTTPError as error:
        if error.code in _ABSENT:
            return False
        raise BadInputError(f"{address}: {error}") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise BadInputError(f"{address}: {error}") from error
    if not zipfile.is_zipfile(path):
        raise BadInputError(f"{address}: expected a wheel, the server sent something else")
    return True
