"""A run of a history as a report, so that it can be one side of a comparison."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import duckdb

from harness.history.store import History
from harness.junit.properties import VERSIONS
from harness.junit.report import Report
from harness.junit.result import Result
from harness.model.outcome import Kind

_LATEST = "latest"
_COLUMNS = tuple(field.name for field in fields(Result))


def recorded(history: History, name: str, stack: str) -> Report:
    """Return the run of that name; ``latest`` is the newest one of the stack.

    Raises BadInputError, naming the runs, if there is none of that name.
    """
    run, stacks = history.find(name, stack if name == _LATEST else "")
    return history.ask(lambda connection: _report(connection, run, history), stacks)


def _report(connection: duckdb.DuckDBPyConnection, run: str, history: History) -> Report:
    names = ("case", *_COLUMNS[1:], "stack", *VERSIONS)
    columns = ", ".join(f'"{name}"' for name in names)
    rows = connection.execute(f"SELECT {columns} FROM cases WHERE run = ?", [run]).fetchall()  # noqa: S608 - names of ours
    if not rows:
        raise history.unreadable(run)
    results = [_result(row) for row in rows]
    versions = rows[0][-len(VERSIONS) :]
    return Report(
        path=Path(history.location) / run,
        stack=rows[0][-len(VERSIONS) - 1],
        versions={name: text for name, text in zip(VERSIONS, versions, strict=True) if text},
        results={result.key: result for result in results},
        left_out={},
    )


def _result(row: tuple[Any, ...]) -> Result:
    values = dict(zip(_COLUMNS, row, strict=False))
    return Result(
        **{
            **values,
            "outcome": Kind(values["outcome"]),
            "upstream": tuple(values["upstream"]),
            "properties": dict(values["properties"] or {}),
        }
    )
