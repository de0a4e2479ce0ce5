"""A history: one immutable Parquet file a run, asked by SQL."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from harness.errors import BadInputError
from harness.results import history_format as formats
from harness.results.history_files import Bucket, files_at, name_of, stack_of
from harness.results.history_views import create_cases
from harness.results.junit_run import Run, Said, joined, read_run

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Recorded:
    """One run's file. ``new`` is whether this recorder added it."""

    run: str
    stack: str
    name: str  # of the file, below the history
    cases: int
    new: bool


@dataclass(frozen=True)
class SetAside:
    """A file that can't be read, and why; the others still count."""

    name: str
    cause: str


class History:
    """The runs below a folder or a URL that fsspec reads."""

    def __init__(self, location: str | os.PathLike[str]) -> None:
        """Raises BadInputError for an address of an unknown kind."""
        self.location = os.fspath(location)
        self.files = files_at(location)
        self.set_aside: tuple[SetAside, ...] = ()  # found by the last ``connect``

    def record(
        self,
        reports: Sequence[Path],
        said: Said = Said(),  # noqa: B008 - it is frozen
        *,
        together: bool = False,
    ) -> tuple[Recorded, ...]:
        """Write a file for each report; ``together`` one for all, as lanes or shards of one run.

        All are read before any is written. Recording a run again changes nothing. Raises
        BadInputError for a report that can't be read and a history that can't be written.
        """
        runs = [read_run(path, said) for path in reports]
        return self.add([joined(runs)] if together else runs)

    def add(self, runs: Sequence[Run]) -> tuple[Recorded, ...]:
        """Write a file for each run; all are encoded before any is written."""
        files = [(run, formats.encoded(run)) for run in runs]
        return tuple(self._add(run, content) for run, content in files)

    def find(self, text: str, stack: str = "") -> tuple[str, str]:
        """The run that a person means, and its stack: its name, the beginning of it, or ``latest``.

        With ``stack`` only its runs are looked at.

        Raises BadInputError with the latest runs when it is none, or several.
        """
        stacks = {Path(name).stem: stack_of(name) for name in self.files.names()}
        runs = sorted(run for run, its in stacks.items() if stack in ("", its))
        found = runs[-1:] if text == "latest" else [run for run in runs if run.startswith(text)]
        if len(found) != 1:
            said = "several" if found else "none"
            latest = ", ".join((found or runs)[-3:]) or "no run at all"
            raise BadInputError(
                f"run {text!r}: expected one of {self.location}, found {said}; there is {latest}"
            )
        return found[0], stacks[found[0]]

    def connect(
        self, stacks: Collection[str] = (), *, verify: bool = False
    ) -> duckdb.DuckDBPyConnection:
        """DuckDB with the view ``cases``, of these stacks or of all; ``set_aside`` what is broken.

        ``verify`` reads every page of every file, which finds a damage that the ends of a file
        don't show. Raises BadInputError for a history without a run.
        """
        names = [n for n in self.files.names() if not stacks or stack_of(n) in stacks]
        if not names:
            raise BadInputError(
                f"{self.location}: expected a history with runs in it, found none: "
                "xla-harness record REPORT --history adds one"
            )
        with ThreadPoolExecutor() as pool:
            looks = list(pool.map(lambda name: self._look(name, verify=verify), names))
        self.set_aside = tuple(look for look in looks if isinstance(look, SetAside))
        present = [n for n, look in zip(names, looks, strict=True) if look is None]
        older = [look for look in looks if isinstance(look, pa.Table)]
        connection = duckdb.connect()
        if isinstance(self.files, Bucket):
            connection.register_filesystem(self.files.system)
        create_cases(connection, [self.files.address(name) for name in present], older)
        return connection

    def ask(
        self,
        question: Callable[[duckdb.DuckDBPyConnection], Answer],
        stacks: Collection[str] = (),
    ) -> Answer:
        """The question's answer; if a damaged file spoils it, the answer without that file."""
        try:
            return question(self.connect(stacks))
        except duckdb.Error:
            before = self.set_aside
            connection = self.connect(stacks, verify=True)
            if self.set_aside == before:
                raise
            return question(connection)

    def _add(self, run: Run, content: bytes) -> Recorded:
        name = name_of(f"{run.time:%Y-%m-%d}", run.stack, run.name)
        new = self.files.add(name, content)
        return Recorded(run.name, run.stack, name, len(run.cases), new)

    def _look(self, name: str, *, verify: bool) -> SetAside | pa.Table | None:
        """What is wrong with a file; the table of one in an older format; None for a good one."""
        try:
            with self.files.open(name) as file:
                reader = pq.ParquetFile(file, page_checksum_verification=verify)
                found = formats.format_of(reader.schema_arrow)
                if found < formats.FORMAT:
                    return _placed(formats.migrated(reader.read()), name)
                if verify:
                    reader.read()
        except (OSError, ValueError, KeyError, pa.ArrowException) as error:
            return SetAside(name, " ".join(str(error).split()))
        return None


def _placed(table: pa.Table, name: str) -> pa.Table:
    """The table with the columns that its folders' names hold."""
    date = pa.scalar(name[: len("date=YYYY-MM-DD")].removeprefix("date=")).cast(pa.date32())
    for column, value in (("date", date), ("stack", pa.scalar(stack_of(name)))):
        table = table.append_column(column, pa.repeat(value, table.num_rows))
    return table
