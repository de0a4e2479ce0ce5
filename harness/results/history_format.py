"""The files of a history: their columns, their version, and the way from an older version here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from harness.results.junit_case import CaseRun
from harness.results.junit_names import VERSIONS
from harness.results.junit_run import Run

# The number changes when a reader of the last one would be wrong; a step below then leads to it.
FORMAT = 1
FORMAT_KEY = b"xla_harness_history"

SCHEMA = pa.schema(
    [
        ("format", pa.int32()),
        ("run", pa.string()),
        ("time", pa.timestamp("us", tz="UTC")),
        ("commit", pa.string()),
        ("machine", pa.string()),
        *((name, pa.string()) for name in VERSIONS),
        ("case", pa.string()),
        ("area", pa.string()),
        ("lane", pa.string()),
        ("topology", pa.string()),
        ("outcome", pa.string()),
        ("expected", pa.bool_()),
        ("duration", pa.float64()),
        ("message", pa.string()),
        ("signature", pa.string()),
        ("layer", pa.string()),
        ("upstream", pa.list_(pa.string())),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("rerun", pa.int32()),
    ],
    metadata={FORMAT_KEY: str(FORMAT).encode()},
)


def encoded(run: Run) -> bytes:
    """The run's Parquet file."""
    cases, count = run.cases, len(run.cases)
    same = {"format": FORMAT, "run": run.name, "time": run.time}
    same |= {"commit": run.commit, "machine": run.machine, **run.versions}
    columns = {name: pa.repeat(_scalar(name, value), count) for name, value in same.items()}
    for name in ("area", "lane", "topology", "expected", "duration", "message", "signature"):
        columns[name] = _column(name, [getattr(case, name) for case in cases])
    for name in ("layer", "rerun"):
        columns[name] = _column(name, [getattr(case, name) for case in cases])
    columns["case"] = _column("case", [case.id for case in cases])
    columns["outcome"] = _column("outcome", [str(case.outcome) for case in cases])
    columns["upstream"] = _column("upstream", [case.upstream for case in cases])
    columns["properties"] = _properties(cases)
    table = pa.table([columns[name] for name in SCHEMA.names], schema=SCHEMA)
    target = BytesIO()
    pq.write_table(table, target, compression="zstd", write_page_checksum=True)
    return target.getvalue()


def format_of(schema: pa.Schema) -> int:
    """The version that a file says it has. Raises ValueError for one that is none of ours."""
    written = (schema.metadata or {}).get(FORMAT_KEY)
    if written is None:
        raise ValueError("no history of xla-harness wrote it")
    if not written.isdigit():
        raise ValueError(f"format {written!r}: expected a number")
    found = int(written)
    if found > FORMAT:
        raise ValueError(f"format {found}: a newer xla-harness wrote it, this one reads {FORMAT}")
    if found == FORMAT and schema.remove_metadata() != SCHEMA.remove_metadata():
        raise ValueError(f"format {found}: its columns are others")
    return found


def migrated(table: pa.Table) -> pa.Table:
    """An older file's table in the present format. Raises ValueError when a step can't be taken."""
    for step in _STEPS[format_of(table.schema) :]:
        table = step(table)
    return table.select(SCHEMA.names).cast(SCHEMA)


def _from_0(table: pa.Table) -> pa.Table:
    """0, of the first drafts: milliseconds, versions in a column each, no layer, no reruns."""
    count = table.num_rows
    columns: dict[str, Any] = {name: table[name] for name in table.schema.names}
    milliseconds = columns.pop("milliseconds")
    columns["duration"] = pa.compute.divide(milliseconds.cast(pa.float64()), 1000.0)
    columns["format"] = pa.repeat(pa.scalar(1, pa.int32()), count)
    columns["layer"] = pa.repeat(pa.scalar(""), count)
    columns["rerun"] = pa.repeat(pa.scalar(0, pa.int32()), count)
    columns["properties"] = pa.array([[]] * count, pa.map_(pa.string(), pa.string()))
    return pa.table(columns, metadata={FORMAT_KEY: b"1"})


# The step at index N makes format N + 1 of format N.
_STEPS: Sequence[Callable[[pa.Table], pa.Table]] = (_from_0,)


def _scalar(name: str, value: object) -> pa.Scalar:
    return pa.scalar(value, SCHEMA.field(name).type)


def _column(name: str, values: Iterable[object]) -> pa.Array:
    return pa.array(values, SCHEMA.field(name).type)


def _properties(cases: Sequence[CaseRun]) -> pa.Array:
    offsets, names, values = [0], list[str](), list[str]()
    for case in cases:
        names += case.properties
        values += case.properties.values()
        offsets.append(len(names))
    return pa.MapArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.array(names, pa.string()), pa.array(values, pa.string())
    )
