"""The views that all SQL of the harness is written over, as DuckDB makes them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import duckdb
import pyarrow as pa

from harness.outcome import Kind
from harness.results.history_format import SCHEMA
from harness.results.history_names import started

SQL = Path(__file__).parent / "sql"

# A time is UTC without a zone here: with one, each client shows its own, and Python needs pytz.
_TIMES = {"time": """"time" AT TIME ZONE 'UTC' AS "time\""""}
_COLUMNS = ", ".join(_TIMES.get(name, f'"{name}"') for name in (*SCHEMA.names, "date", "stack"))
# date and stack are the folders' names; without types DuckDB would take 2.10 for a number.
_PARTITIONS = "hive_partitioning = true, hive_types = {'date': DATE, 'stack': VARCHAR}"

_NUMBERS = """
SELECT run, time, stack, lane, topology, "case", 'duration' AS name, duration AS value
FROM cases WHERE {where} AND outcome IN ('passed', 'unexpected pass')
UNION ALL
SELECT run, time, stack, lane, topology, "case", name, value
FROM (
    SELECT *, unnest(map_keys(properties)) AS name,
        TRY_CAST(unnest(map_values(properties)) AS DOUBLE) AS value
    FROM cases WHERE {where} AND outcome IN ('passed', 'unexpected pass')
)
WHERE value BETWEEN -1e300 AND 1e300
"""
# How far back slower.sql looks; a date, so that older files are not opened for their numbers.
_REACH = """
SELECT min(date) FROM (
    SELECT date, row_number() OVER (PARTITION BY stack, lane ORDER BY run DESC) AS place
    FROM runs WHERE run <= (SELECT min(run) FROM asked)
) WHERE place <= 23
"""


def create_cases(
    connection: duckdb.DuckDBPyConnection, addresses: Sequence[str], older: Sequence[pa.Table]
) -> None:
    """Create the view ``cases`` over files of the present format and tables of older ones."""
    parts = []
    if addresses:
        parts.append(f"SELECT {_COLUMNS} FROM {_files(addresses)}")  # noqa: S608 - quoted
    if older or not addresses:
        connection.register("given", pa.concat_tables([_EMPTY, *older]))
        connection.execute("CREATE TABLE older AS SELECT * FROM given")  # so that cursors see it
        connection.unregister("given")
        parts.append(f"SELECT {_COLUMNS} FROM older")  # noqa: S608 - names of ours
    connection.execute(f"CREATE VIEW cases AS {' UNION ALL '.join(parts)}")


def is_sound(connection: duckdb.DuckDBPyConnection, addresses: Sequence[str]) -> bool:
    """Whether files of the present format hold what their names say, and outcomes that exist.

    It looks at no more than that, for it looks at every file: ``history_format.decoded`` at all.
    """
    outcomes = ", ".join(f"'{kind}'" for kind in Kind)
    bad = (
        f"SELECT count(*) FROM {_files(addresses)} "  # noqa: S608 - quoted
        f"WHERE (outcome IN ({outcomes}) AND run = parse_filename(filename, true)) IS NOT true"
    )
    try:
        return not addresses or connection.execute(bad).fetchall() == [(0,)]
    except duckdb.IOException:
        raise
    except duckdb.Error:
        return False


_EMPTY = pa.schema([*SCHEMA, ("date", pa.date32()), ("stack", pa.string())]).empty_table()


def ask_about(
    connection: duckdb.DuckDBPyConnection, runs: Sequence[str], days: int | None = None
) -> duckdb.DuckDBPyConnection:
    """A connection of its own in which the rules' statements run, as they stand in ``sql/``.

    There ``asked`` are the runs that exist of ``runs``, and ``cases`` what has to do with them:
    their stacks, not after them, and at most ``days`` before them. ``numbers`` has a line for each
    number of a case that works; ``runs``, ``answers`` and ``flaky`` are what the statements of
    those names say.
    """
    cursor = connection.cursor()
    dates = _dates(runs)
    cursor.execute(
        "CREATE TEMP TABLE asked AS SELECT DISTINCT run, time, stack FROM memory.main.cases "
        "WHERE run IN (SELECT unnest(?)) AND list_contains(?::DATE[], date)",
        [list(runs), dates],
    )
    found = cursor.execute("SELECT DISTINCT stack FROM asked ORDER BY stack").fetchall()
    stacks = ", ".join(f"'{_quoted(stack)}'" for (stack,) in found) or "NULL"
    where = f"stack IN ({stacks})"
    if dates:
        where += f" AND date <= DATE '{dates[-1]}'"
    if dates and days is not None:
        where += f" AND date >= DATE '{dates[0]}' - INTERVAL {days} DAY"
    cursor.execute(f"CREATE TEMP VIEW cases AS SELECT * FROM memory.main.cases WHERE {where}")  # noqa: S608
    cursor.execute(f"CREATE TEMP TABLE runs AS {statement('runs')}")
    (reach,) = cursor.execute(_REACH).fetchone() or (None,)
    since = f"date >= DATE '{reach}'" if reach else "true"
    cursor.execute(f"CREATE TEMP VIEW numbers AS {_NUMBERS.format(where=since)}")
    for name in ("answers", "flaky"):
        cursor.execute(f"CREATE TEMP TABLE {name} AS {statement(name)}")
    return cursor


def statement(name: str) -> str:
    """The SQL of ``sql/NAME.sql``, with the comment that says its rule."""
    return (SQL / f"{name}.sql").read_text(encoding="utf-8")


def _dates(runs: Sequence[str]) -> list[str]:
    found = set[str]()
    for run in runs:
        with suppress(ValueError):  # a name that no run has
            found.add(f"{started(run):%Y-%m-%d}")
    return sorted(found)


def _files(addresses: Sequence[str]) -> str:
    files = ", ".join(f"'{_quoted(address)}'" for address in addresses)
    return f"read_parquet([{files}], {_PARTITIONS})"


def _quoted(text: str) -> str:
    return text.replace("'", "''")
