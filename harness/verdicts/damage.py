"""Find the unreadable files of a history that could have changed a verdict."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from harness.history.names import RunFile, SetAside, place_of

if TYPE_CHECKING:
    import duckdb

_WINDOW = 7  # runs that flaky.sql looks at
# Of a run that can't be read, between the parameters: its name. A lane that no run since then has,
# a case that is broken now and that no run since then measured, and, where the flaky rule would
# have looked at it, a case with answers of both kinds.
_MATTERS = """
WITH since AS (
    SELECT c.*, o.answer FROM cases c LEFT JOIN outcomes o USING (outcome) WHERE c.run > $damaged
), now AS (
    SELECT s.* FROM since s JOIN asked USING (run)
), between_ AS (
    SELECT * FROM since WHERE run NOT IN (SELECT run FROM asked)
)
SELECT
    EXISTS (SELECT stack, lane FROM now EXCEPT SELECT stack, lane FROM between_)
    OR EXISTS (
        SELECT stack, lane, topology, "case" FROM now WHERE answer <> 'works'
        EXCEPT SELECT stack, lane, topology, "case" FROM between_ WHERE answer IS NOT NULL
    )
    OR (
        (SELECT count(DISTINCT run) FROM since) < $window
        AND EXISTS (SELECT 1 FROM flaky WHERE run IN (SELECT run FROM asked))
    )
"""


def deciding(
    cursor: duckdb.DuckDBPyConnection, set_aside: Iterable[SetAside]
) -> tuple[SetAside, ...]:
    """Return the files without which nobody can say that nothing regressed.

    They may hold the baseline of a case of the runs ``asked``. A file whose name says no stack and
    no time may hold any. ``cursor`` is of ``harness.verdicts.rules.ask_about``.
    """
    row = cursor.execute("SELECT max(run), list(DISTINCT stack) FROM asked").fetchone()
    if row is None or row[0] is None:
        return ()
    last, stacks = row
    return tuple(
        each
        for each in set_aside
        if (place := _place(each)) is None
        or (place.stack in stacks and place.run < last and _matters(cursor, place))
    )


def _place(file: SetAside) -> RunFile | None:
    try:
        return place_of(file.name)
    except ValueError:
        return None


def _matters(cursor: duckdb.DuckDBPyConnection, place: RunFile) -> bool:
    values = {"damaged": place.run, "window": _WINDOW}
    return cursor.execute(_MATTERS, values).fetchone() == (True,)
