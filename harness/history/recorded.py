"""A run of a history as a report, so that it can be one side of a comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb

from harness.history.store import History
from harness.junit.properties import VERSIONS
from harness.junit.report import Report, Result
from harness.model.outcome import Kind

_LATEST = "latest"
_COLUMNS = ("case", "area", "lane", "topology", "outcome", "message", "layer", "duration")


def recorded(history: History, name: str, stack: str) -> Report:
    """The run of that name; ``latest`` is the newest one of the stack.

    Raises BadInputError, naming the runs that there are, for none.
    """
    run, stacks = history.find(name, stack if name == _LATEST else "")
    return history.ask(lambda connection: _report(connection, run, history), stacks)


def _report(connection: duckdb.DuckDBPyConnection, run: str, history: History) -> Report:
    names = (*_COLUMNS, "upstream", "properties", "stack", *VERSIONS)
    columns = ", ".join(f'"{name}"' for name in names)
    rows = connection.execute(f"SELECT {columns} FROM cases WHERE run = ?", [run]).fetchall()  # noqa: S608 - names of ours
    if not rows:
        raise history.unreadable(run)
    results = [_result(row) for row in rows]
    said = rows[0][-len(VERSIONS) :]
    return Report(
        path=Path(history.location) / run,
        stack=rows[0][-len(VERSIONS) - 1],
        versions={name: text for name, text in zip(VERSIONS, said, strict=True) if text},
        results={result.key: result for result in results},
        left_out={},
    )


def _result(row: tuple[Any, ...]) -> Result:
    id_, area, lane, topology, outcome, message, layer, duration, upstream, properties, *_ = row
    return Result(
        id=id_,
        lane=lane,
        topology=topology,
        outcome=Kind(outcome),
        failure=message,
        layer=layer,
        text=message,
        seconds=duration,
        properties={**dict(properties or {}), "area": area, "upstream": " ".join(upstream)},
    )
