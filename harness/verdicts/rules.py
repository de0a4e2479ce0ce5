"""The statements of the rules, and the connection in which they run as they stand in ``sql/``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.history.names import started
from harness.history.sql import quoted
from harness.model.case_id import key_of
from harness.verdicts.costs import Cost
from harness.verdicts.finding import Finding
from harness.verdicts.words import CHANGES_SQL, Verdict

if TYPE_CHECKING:
    import duckdb

SQL = Path(__file__).parent / "sql"

_NUMBERS = """
SELECT run, time, stack, lane, topology, "case", 'duration' AS name, duration AS value
FROM cases JOIN outcomes USING (outcome) WHERE {where} AND answer = 'works'
    AND properties['reused'] IS NULL  -- which an earlier run measured: it would count twice
UNION ALL
SELECT run, time, stack, lane, topology, "case", name, value
FROM (
    SELECT *, unnest(map_keys(properties)) AS name,
        TRY_CAST(unnest(map_values(properties)) AS DOUBLE) AS value
    FROM cases JOIN outcomes USING (outcome) WHERE {where} AND answer = 'works'
        AND properties['reused'] IS NULL
)
WHERE value BETWEEN -1e300 AND 1e300 AND name <> 'deadline'  -- which was given, not measured
"""
# How far back slower.sql looks; a date, so that older files are not opened for their numbers.
_REACH = """
SELECT min(date) FROM (
    SELECT date, row_number() OVER (PARTITION BY stack, lane ORDER BY run DESC) AS place
    FROM runs WHERE run <= (SELECT min(run) FROM asked)
) WHERE place <= 23
"""
# Of runs that may be older than those in question: a case that stands as broken since then.
_WITH_FACTS = """
SELECT f.*, c.area, c.outcome, c.outcome = 'expected failure' AS expected,
    c.message, c.signature, c.layer, c.upstream AS issues
FROM found f
LEFT JOIN (SELECT * FROM cases WHERE run IN (SELECT run FROM found)) c
    ON c.run = f.run AND c.lane = f.lane AND c.topology = f.topology AND c.case = f.case
"""


def ask_about(
    connection: duckdb.DuckDBPyConnection, runs: Sequence[str], days: int | None = None
) -> duckdb.DuckDBPyConnection:
    """Return a new connection in which the rules' statements of ``sql/`` run.

    There ``asked`` are the runs that exist of ``runs``, and ``cases`` what has to do with them:
    their stacks, not after them, and at most ``days`` before them. ``numbers`` has a line for each
    number of a case that works; ``changes`` is the rule about change; ``runs``, ``answers`` and
    ``flaky`` are the results of the statements of those names.
    """
    cursor = connection.cursor()
    dates = _dates(runs)
    cursor.execute(
        "CREATE TEMP TABLE asked AS SELECT DISTINCT run, time, stack FROM memory.main.cases "
        "WHERE run IN (SELECT unnest(?)) AND list_contains(?::DATE[], date)",
        [list(runs), dates],
    )
    rows = cursor.execute("SELECT DISTINCT stack FROM asked ORDER BY stack").fetchall()
    stacks = ", ".join(f"'{quoted(stack)}'" for (stack,) in rows) or "NULL"
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
    cursor.execute(f"CREATE TEMP VIEW changes AS {CHANGES_SQL}")
    for name in ("answers", "flaky"):
        cursor.execute(f"CREATE TEMP TABLE {name} AS {statement(name)}")
    return cursor


def findings(cursor: duckdb.DuckDBPyConnection, rules: Iterable[str]) -> list[Finding]:
    """Return what the rules' statements find, each with what its run says of the case.

    A statement's columns are named as the fields. One that is NULL leaves the field's default.
    """
    matches = []
    for rule in rules:
        cursor.execute(f"CREATE OR REPLACE TEMP TABLE found AS {statement(rule)}")
        rows = cursor.execute(_WITH_FACTS).fetchall()
        names = [name for name, *_ in cursor.description or ()]
        matches += [_finding(dict(zip(names, row, strict=True))) for row in rows]
    return matches


def _finding(columns: dict[str, Any]) -> Finding:
    fields = {name: value for name, value in columns.items() if value is not None}
    if number := fields.pop("number", ""):
        unit = "s" if number.startswith("duration") else ""
        fields["costs"] = (Cost(number, fields.pop("was"), fields.pop("now"), unit),)
    return Finding(
        **{
            **fields,
            "key": key_of(fields["case"], fields["lane"], fields["topology"]),
            "verdict": Verdict(fields["verdict"]),
            "issues": tuple(fields.get("issues", ())),
        }
    )


def statement(name: str) -> str:
    """Return the SQL of ``sql/NAME.sql``, with the comment that states its rule."""
    return (SQL / f"{name}.sql").read_text(encoding="utf-8")


def _dates(runs: Sequence[str]) -> list[str]:
    days = set[str]()
    for run in runs:
        with suppress(ValueError):  # a name that no run has
            days.add(f"{started(run):%Y-%m-%d}")
    return sorted(days)
