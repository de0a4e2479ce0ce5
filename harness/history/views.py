"""The views that all SQL of the harness is written over, as DuckDB makes them."""

from __future__ import annotations

from collections.abc import Sequence

import duckdb
import pyarrow as pa

from harness.history.format import SCHEMA
from harness.history.sql import quoted
from harness.model.outcome import OUTCOMES_SQL, Kind

# A time is UTC without a zone here: with one, each client shows its own, and Python needs pytz.
_TIMES = {"time": """"time" AT TIME ZONE 'UTC' AS "time\""""}
_COLUMNS = ", ".join(_TIMES.get(name, f'"{name}"') for name in (*SCHEMA.names, "date", "stack"))
# date and stack are the folders' names; without types DuckDB would take 2.10 for a number.
_PARTITIONS = "hive_partitioning = true, hive_types = {'date': DATE, 'stack': VARCHAR}"


def create_cases(connection: duckdb.DuckDBPyConnection, addresses: Sequence[str]) -> None:
    """Create the views ``cases``, over the files, and ``outcomes``, what each outcome means."""
    rows = _files(addresses) if addresses else "no_file"
    if not addresses:
        connection.register("given", _EMPTY)
        connection.execute("CREATE TABLE no_file AS SELECT * FROM given")  # so that cursors see it
        connection.unregister("given")
    connection.execute(f"CREATE VIEW cases AS SELECT {_COLUMNS} FROM {rows}")  # noqa: S608 - quoted
    connection.execute(f"CREATE VIEW outcomes AS {OUTCOMES_SQL}")


def is_sound(connection: duckdb.DuckDBPyConnection, addresses: Sequence[str]) -> bool:
    """Return whether the files hold the runs that they are named after, and known outcomes.

    It checks no more than that, because it reads every file; ``format.check_values`` checks
    everything.
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


def _files(addresses: Sequence[str]) -> str:
    files = ", ".join(f"'{quoted(address)}'" for address in addresses)
    return f"read_parquet([{files}], {_PARTITIONS})"
