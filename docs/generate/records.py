"""What a run leaves behind: JUnit properties, a history's columns, and the rules in SQL."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path

import duckdb

from harness.history.store import History
from harness.lanes import LANES
from harness.lanes.events import Events
from harness.model.versions import COMPONENTS
from harness.session.record import Record
from harness.verdicts import rules

_ROOT = Path(__file__).parents[2]
_SAMPLE = _ROOT / "fixtures" / "junit" / "2.9.0-virtual-tpu.xml"


def junit() -> str:
    """Return the properties of a case, by where they come from."""
    own = [(f.name, str(f.type)) for f in dataclasses.fields(Record) if f.name != "facts"]
    lanes = [(name, lane.name) for lane in LANES.values() for name in lane.facts(Events())]
    return "\n".join(
        [
            "# JUnit properties\n",
            "Of every case, in pytest's own JUnit report (`--junitxml`). One without a value is",
            "left out. [Outcomes](../outcomes.md) says what each means. Durations are seconds.\n",
            *_table(("property", "type"), own),
            "\nWhat a lane measures:\n",
            *_table(("property", "lane"), lanes),
            "\nThe stack:\n",
            *_table(("property", "is the version of"), [(n, n) for n in ("python", *COMPONENTS)]),
        ]
    )


def sql() -> str:
    """Return the columns of the view ``cases``, from DuckDB, and each rule's statement."""
    return "\n".join(
        [
            "# SQL columns and rules\n",
            "`xla-harness ci query` asks the view `cases`: a row for each answer of a case.",
            "[History](../history.md) says what each column means.\n",
            *_table(("column", "type"), _columns()),
            "\n## Rules\n",
            "`xla-harness verdict` is these statements. They run on Spark too.\n",
            *(f"### {path.stem}\n\n```sql\n{path.read_text()}```\n" for path in _rules()),
        ]
    )


def _rules() -> list[Path]:
    return sorted(rules.SQL.glob("*.sql"))


def _columns() -> list[tuple[str, str]]:
    def described(connection: duckdb.DuckDBPyConnection) -> list[tuple[str, str]]:
        return [(name, kind) for name, kind, *_ in connection.sql("DESCRIBE cases").fetchall()]

    with tempfile.TemporaryDirectory() as folder:
        history = History(folder)
        history.record([_SAMPLE])
        return history.ask(described)


def _table(head: tuple[str, str], rows: list[tuple[str, str]]) -> Iterator[str]:
    yield f"| {head[0]} | {head[1]} |"
    yield "| --- | --- |"
    for name, kind in rows:
        shown = kind.replace("|", "\\|")
        yield f"| `{name}` | `{shown}` |"
