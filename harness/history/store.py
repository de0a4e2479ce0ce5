"""A history: one immutable Parquet file for each run, queried in SQL."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeAlias, TypeVar

import duckdb

from harness.errors import BadInputError
from harness.history import format as formats
from harness.history.names import SUFFIX, RunFile, SetAside, place_of
from harness.history.run import Run, RunMetadata, joined, read_run
from harness.history.storage import Bucket, Files, files_at
from harness.history.views import create_cases, is_sound

T = TypeVar("T")
Check: TypeAlias = Callable[[RunFile, bytes], None]


class Stored(StrEnum):
    """Effect of ``put`` on a run's file."""

    RECORDED = "recorded"
    KNOWN = "known"  # it was there already
    REPLACED = "replaced"  # it was there already, damaged


@dataclass(frozen=True)
class RecordedRun:
    """File of one run, and what this recorder did with it."""

    run: str
    stack: str
    name: str  # of the file, below the history
    cases: int
    added: Stored

    @property
    def new(self) -> bool:
        """Return whether this recorder added the file."""
        return self.added is Stored.RECORDED


class History:
    """The runs below a folder or a URL that fsspec reads."""

    def __init__(self, location: str | os.PathLike[str]) -> None:
        """Open the history; raise BadInputError for an address of an unknown kind."""
        self.location = os.fspath(location)
        self.files = files_at(location)
        self.set_aside: tuple[SetAside, ...] = ()  # what the last ``connect`` did not use

    def record(
        self,
        reports: Sequence[Path],
        metadata: RunMetadata = RunMetadata(),  # noqa: B008 - it is frozen
        *,
        together: bool = False,
    ) -> tuple[RecordedRun, ...]:
        """Write a file for each report; ``together`` one for all, as lanes or shards of one run.

        All are read before any is written. Recording a run again changes nothing, unless its file
        is damaged: then it is replaced. Raises BadInputError for a report that can't be read and a
        history that can't be written.
        """
        runs = [read_run(path, metadata) for path in reports]
        return self.add([joined(runs)] if together else runs)

    def add(self, runs: Sequence[Run]) -> tuple[RecordedRun, ...]:
        """Write a file for each run; all are encoded before any is written."""
        files = []
        for run in runs:
            place = self._place(run)
            files.append((run, place, formats.encoded(run, place)))
        return tuple(
            RecordedRun(
                place.run, run.stack, place.name, len(run.cases), put(self.files, place, file)
            )
            for run, place, file in files
        )

    def find(self, text: str, stack: str = "") -> tuple[str, tuple[str, ...]]:
        """Return the run with this name or this beginning of a name, or ``latest``, and its stack.

        With ``stack`` only its runs count. If somebody copied a file to another stack, both stacks
        are returned: ``ask`` finds out which of the two is sound. Raises BadInputError with the
        latest runs if it is none, or several.
        """
        places = [each for each in self.files.listed().places if stack in ("", each.stack)]
        runs = sorted({each.run for each in places})
        matches = runs[-1:] if text == "latest" else [run for run in runs if run.startswith(text)]
        if len(matches) != 1:
            number = "several" if matches else "none"
            latest = ", ".join((matches or runs)[-3:]) or "no run at all"
            raise BadInputError(
                f"run {text!r}: expected one of {self.location}, found {number}; there is {latest}"
            )
        return matches[0], tuple(each.stack for each in places if each.run == matches[0])

    def connect(self, stacks: Collection[str] = ()) -> duckdb.DuckDBPyConnection:
        """DuckDB with the view ``cases``, of these stacks or of all; ``set_aside`` what is broken.

        Every byte of every file is looked at, also of other stacks: a file may have been moved.
        Raises BadInputError for a history without a run.
        """
        listed = self.files.listed()
        self.set_aside = listed.set_aside
        if not listed.places:
            aside = "".join(f"; set aside: {each.name}: {each.cause}" for each in listed.set_aside)
            raise BadInputError(
                f"{self.location}: expected a history with runs in it, found none: "
                f"xla-harness record REPORT --history adds one{aside}"
            )
        connection = duckdb.connect()
        if isinstance(self.files, Bucket):
            connection.register_filesystem(self.files.system)
        chosen = [each for each in listed.places if not stacks or each.stack in stacks]
        others = [each for each in listed.places if stacks and each.stack not in stacks]
        self._sound(others, formats.check_bytes)
        sound = self._sound(chosen, formats.check_bytes)
        if not is_sound(connection, self._addresses(sound)):
            # A file has its checksum and is invalid all the same: it was written so.
            sound = self._sound(sound, formats.check_values)
        create_cases(connection, self._addresses(sound))
        return connection

    def ask(
        self,
        question: Callable[[duckdb.DuckDBPyConnection], T],
        stacks: Collection[str] = (),
    ) -> T:
        """Return the question's answer, from files whose checksums are right.

        Raises BadInputError for a file that went bad after it was looked at.
        """
        for _ in range(2):  # the second time without what the first one could not read any more
            try:
                return question(self.connect(stacks))
            except duckdb.IOException as error:
                cause = " ".join(str(error).split())
        raise BadInputError(f"{self.location}: {cause}")

    def unreadable(self, run: str) -> BadInputError:
        """Return the error for a run whose file exists but can't be read, with the cause."""
        causes = [each.cause for each in self.set_aside if each.name.endswith(f"/{run}{SUFFIX}")]
        cause = f": {causes[0]}" if causes else ""
        return BadInputError(
            f"run {run}: its file in {self.location} can't be read{cause}; "
            "record it again, or name another run"
        )

    def _place(self, run: Run) -> RunFile:
        """Return the run's file. Raises BadInputError."""
        place = RunFile(run.name, run.stack)
        try:
            place_of(place.name)
        except ValueError as error:
            raise BadInputError(f"{place.name}: {error}") from error
        return place

    def _sound(self, places: Sequence[RunFile], check: Check) -> list[RunFile]:
        """Return the files that pass; set the others aside."""
        with ThreadPoolExecutor() as pool:
            faults = list(pool.map(lambda place: fault_of(self.files, place, check), places))
        self.set_aside += tuple(fault for fault in faults if fault)
        return [place for place, fault in zip(places, faults, strict=True) if not fault]

    def _addresses(self, places: Sequence[RunFile]) -> list[str]:
        return [self.files.address(place.name) for place in places]


def fault_of(files: Files, place: RunFile, check: Check = formats.check_bytes) -> SetAside | None:
    """Return why a file can't be used; None if it can."""
    try:
        check(place, files.read(place.name))
    except OSError as error:
        return SetAside(place.name, error.strerror or str(error))
    except ValueError as error:
        return SetAside(place.name, str(error))
    return None


def put(files: Files, place: RunFile, content: bytes) -> Stored:
    """Add a run's file, or put it in the place of a damaged one. Raises BadInputError."""
    if files.add(place.name, content):
        return Stored.RECORDED
    if fault_of(files, place):
        files.replace(place.name, content)
        return Stored.REPLACED
    return Stored.KNOWN
