"""The names of a history's files: date, stack and run, so that names sort by time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import quote, unquote

SUFFIX = ".parquet"
# Nothing was measured earlier; and a clock may be wrong by a time zone, but not by more.
_OLDEST = datetime(2015, 1, 1, tzinfo=UTC)
_AHEAD = timedelta(days=1)
_MOST_STACK = 80  # characters: it names a folder
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"  # what every engine reads as no value
_RUN = re.compile(r"(?P<second>\d{8}T\d{6})_(?P<microsecond>\d{6})Z-\d{7}-[0-9a-f]{12}", re.ASCII)
_FORM = f"date=YYYY-MM-DD/stack=STACK/RUN{SUFFIX}"


@dataclass(frozen=True)
class SetAside:
    """A file or folder that is not used, and why; the others are."""

    name: str
    cause: str


@dataclass(frozen=True, order=True)
class RunFile:
    """Location of one run's file, below the history."""

    run: str
    stack: str

    @property
    def time(self) -> datetime:
        """The run's start, as exactly as its name says it."""
        return started(self.run)

    @property
    def name(self) -> str:
        """The file, as Hive writes partitions: no stack's name leads elsewhere."""
        return f"date={self.time:%Y-%m-%d}/stack={quote(self.stack, safe='')}/{self.run}{SUFFIX}"


def run_name(time: datetime, answers: int, digest: str) -> str:
    """Start, how many cases have an answer, and content.

    The order of names is the order of runs in time, and of runs that started together the one
    with more answers comes later: it has the cells that were late.
    """
    return f"{time:%Y%m%dT%H%M%S_%fZ}-{answers:07d}-{digest[:12]}"


def started(run: str) -> datetime:
    """Return when the run started, in UTC; raise ValueError if it is no name of a run."""
    match = _RUN.fullmatch(run)
    if match is None:
        raise ValueError(f"run {run!r}: expected START-ANSWERS-DIGEST")
    return datetime.fromisoformat(f"{match['second']}.{match['microsecond']}Z")


def place_of(name: str) -> RunFile:
    """Return the place for a file's name. Raises ValueError for any other name."""
    try:
        name.encode()
        _, stack, file = name.split("/")
        run = file.removesuffix(SUFFIX)
        started(run)
        place = RunFile(run, unquote(stack.removeprefix("stack="), errors="strict"))
    except ValueError as error:
        raise ValueError(f"its name is not that of a run's file: expected {_FORM}") from error
    check_stack(place.stack)
    checked_time(place.time)
    if place.name != name:
        raise ValueError(f"its name does not agree with itself: expected {place.name}")
    return place


def parse_time(text: str) -> datetime:
    """Parse an ISO 8601 time as UTC; a time without a zone is taken as UTC.

    Raises ValueError for any other text, and for a time at which nothing can have run.
    """
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"expected ISO 8601, as 2026-11-21T02:30:00Z: {error}") from error
    return checked_time(time)


def checked_time(time: datetime) -> datetime:
    """Return the time in UTC. Raises ValueError for one at which nothing can have run."""
    try:
        time = time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)
    except OverflowError as error:
        raise ValueError(f"expected ISO 8601, as 2026-11-21T02:30:00Z: {error}") from error
    if not _OLDEST <= time <= datetime.now(UTC) + _AHEAD:
        raise ValueError(
            f"expected a time from {_OLDEST:%Y-%m-%d} to a day from now, found {time.isoformat()}"
        )
    return time


def check_stack(stack: str) -> None:
    """Raise ValueError for a name of a stack that can't be a partition's."""
    if not 0 < len(stack) <= _MOST_STACK or not stack.isprintable() or stack == _HIVE_NULL:
        raise ValueError(
            f"expected at most {_MOST_STACK} printable characters, and not {_HIVE_NULL}, "
            f"found {stack[:_MOST_STACK]!r}"
        )
