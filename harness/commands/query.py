"""``xla-harness ci query``: query a history in SQL."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from harness.commands.output import answer, say
from harness.commands.parsers import add_json
from harness.errors import PARTIAL, BadInputError
from harness.history.names import SetAside
from harness.printable import printable

if TYPE_CHECKING:
    import duckdb


Rows = tuple[list[str], list[tuple[object, ...]]]
_WIDEST = 60  # characters of a column, but for the last


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("sql", metavar="SQL", help="as 'SELECT outcome, count(*) FROM cases ...'")
    parser.add_argument("--history", required=True, metavar="DIR", help="a folder, or an address")
    parser.add_argument("--csv", action="store_true", help="as CSV, uncut; line breaks are escaped")
    add_json(parser)
    parser.set_defaults(run=_run)
    parser.epilog = "The exit code is 3 when a file of the history is set aside."


def name_set_aside(files: Iterable[SetAside]) -> None:
    """Print the files that are not used, each with its cause."""
    for file in files:
        say(f"set aside: {printable(file.name)}: {printable(file.cause)}")


def _run(options: argparse.Namespace) -> int:
    import duckdb

    from harness.history.store import History

    history = History(options.history)

    def question(connection: duckdb.DuckDBPyConnection) -> Rows:
        done = cast("duckdb.DuckDBPyConnection | None", connection.execute(options.sql))
        if done is None:  # not what DuckDB's types say: "" and ";" are no statement
            raise BadInputError("SQL: expected a statement, as 'SELECT count(*) FROM cases'")
        return [column[0] for column in done.description or ()], done.fetchall()

    try:
        names, rows = history.ask(question)
    except (duckdb.Error, ValueError, OverflowError) as error:  # also a date that Python has not
        message = next(iter(str(error).splitlines()), type(error).__name__)
        raise BadInputError(f"SQL: {message}") from error
    name_set_aside(history.set_aside)
    left_out = PARTIAL if history.set_aside else 0
    if options.csv:
        writer = csv.writer(sys.stdout)
        writer.writerows([[_cell(value) for value in row] for row in (names, *rows)])
        return left_out
    cells = [[_cell(value) for value in row] for row in (names, *rows)]
    widths = [min(max(map(len, column)), _WIDEST) for column in zip(*cells, strict=True)]
    fitted = [[_fitted(c, width) for c, width in zip(r, widths, strict=True)] for r in cells]
    data = [dict(zip(names, map(_plain, row), strict=True)) for row in rows]
    answer(options, data, "\n".join("  ".join(row).rstrip() for row in fitted))
    return left_out


def _plain(value: object) -> object:
    """Return the value if JSON has its type; otherwise, as for a date, the text in the table."""
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _cell(value: object) -> str:
    return "" if value is None else printable(str(value))


def _fitted(cell: str, width: int) -> str:
    return f"{cell:<{width}}" if len(cell) <= width else f"{cell[: width - 1]}~"
