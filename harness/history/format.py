"""The files of a history: columns, version and checksum."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from datetime import UTC
from io import BytesIO

import pyarrow as pa
import pyarrow.parquet as pq

from harness.history.names import RunFile
from harness.history.run import Run
from harness.junit.properties import VERSIONS
from harness.junit.result import MOST_MESSAGE, Result
from harness.model.outcome import Kind

# The number changes when a reader of the last one would be wrong.
FORMAT = 3
FORMAT_KEY = b"xla_harness_history"
# The last entry of a file's metadata is its format and a SHA-256 of the file's name
# and of all bytes of the file but those digits.
_CHECKSUM_KEY = b"xla_harness_checksum"
_CHECKSUM = re.compile(_CHECKSUM_KEY + rb"..([0-9]{1,9}) ([0-9a-f]{64})", re.DOTALL)
_OUTCOMES = frozenset(map(str, Kind))

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


def encoded(run: Run, place: RunFile) -> bytes:
    """Return the run's Parquet file for that place; it is not valid at any other."""
    cases, count = run.cases, len(run.cases)
    same = {"format": FORMAT, "run": place.run, "time": run.time}
    same |= {"commit": run.commit, "machine": run.machine, **run.versions}
    columns = {name: pa.repeat(_scalar(name, value), count) for name, value in same.items()}
    for name in ("area", "lane", "topology", "expected", "duration", "message", "layer"):
        columns[name] = _column(name, [getattr(case, name) for case in cases])
    for name in ("signature", "upstream", "rerun"):
        columns[name] = _column(name, [getattr(case, name) for case in cases])
    columns["case"] = _column("case", [case.id for case in cases])
    columns["outcome"] = _column("outcome", [str(case.outcome) for case in cases])
    columns["properties"] = _properties(cases)
    table = pa.table([columns[name] for name in SCHEMA.names], schema=SCHEMA)
    return with_checksum(table, place)


def with_checksum(table: pa.Table, place: RunFile, compression: str = "zstd") -> bytes:
    """Return the Parquet file of a table in the present format."""
    target, empty = BytesIO(), f"{FORMAT} {'0' * 64}"
    with pq.ParquetWriter(
        target, SCHEMA, compression=compression, write_page_checksum=True
    ) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({_CHECKSUM_KEY.decode(): empty})
    content = target.getvalue()
    match = _found_checksum(content)
    assert match is not None
    start, end = match.span(2)
    return content[:start] + _checksum(place, content, match) + content[end:]


def check_bytes(place: RunFile, content: bytes) -> None:
    """Compare a file with its checksum.

    Raises ValueError with the cause for a file that is damaged, of another place or of another
    kind.
    """
    match = _found_checksum(content)
    if match is None:
        raise ValueError("damaged, or of another kind: it has no checksum")
    _check_format(match[1])
    if _checksum(place, content, match) != match[2]:
        raise ValueError("damaged, or of another place: its content does not have its checksum")


def check_values(place: RunFile, content: bytes) -> None:
    """Look at every value of a file. Raises ValueError with the cause for one that can't be."""
    check_bytes(place, content)
    try:
        reader = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True)
        _check_schema(reader.schema_arrow)
        table = reader.read(use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise ValueError(" ".join(str(error).split())) from error
    _check_columns(place, table)


def _check_schema(schema: pa.Schema) -> None:
    """Raise ValueError for a file of another kind."""
    written = (schema.metadata or {}).get(FORMAT_KEY)
    if written is None:
        raise ValueError("no history of xla-harness wrote it")
    _check_format(written)
    if schema.remove_metadata() != SCHEMA.remove_metadata():
        raise ValueError(f"format {FORMAT}: its columns are others")


def _check_format(written: bytes) -> None:
    if written != str(FORMAT).encode():
        raise ValueError(
            f"format {written.decode(errors='replace')}: another xla-harness wrote it, this one "
            f"reads {FORMAT}"
        )


def _found_checksum(content: bytes) -> re.Match[bytes] | None:
    """Format and checksum: the last that look so, since cases' names come before them."""
    at = content.rfind(_CHECKSUM_KEY)
    return _CHECKSUM.match(content, at) if at >= 0 else None


def _checksum(place: RunFile, content: bytes, match: re.Match[bytes]) -> bytes:
    start, end = match.span(2)
    digest, view = hashlib.sha256(f"{place.name}\0".encode()), memoryview(content)
    digest.update(view[:start])
    digest.update(view[end:])
    return digest.hexdigest().encode()


def _check_columns(place: RunFile, table: pa.Table) -> None:
    """Raise ValueError for values that no recorder writes."""
    if not table.num_rows:
        raise ValueError("it has no case")
    for name in SCHEMA.names:
        if table[name].null_count:
            raise ValueError(f"column {name!r}: expected a value in every row, found none in some")
    times = [time.astimezone(UTC) for time in table["time"].unique().to_pylist()]
    for name, values, expected in (
        ("run", set(table["run"].unique().to_pylist()), {place.run}),
        ("time", set(times), {place.time}),
        ("outcome", set(table["outcome"].unique().to_pylist()), _OUTCOMES),
    ):
        if not values <= expected:
            raise ValueError(
                f"column {name!r}: expected {', '.join(sorted(map(str, expected)))}, "
                f"found {', '.join(sorted(map(repr, map(str, values - expected))))[:200]}"
            )
    durations = table["duration"]
    if not pa.compute.all(pa.compute.is_finite(durations)).as_py():
        raise ValueError("column 'duration': expected seconds")
    if pa.compute.min(durations).as_py() < 0:
        raise ValueError("column 'duration': expected seconds, found less than 0")


def _scalar(name: str, value: object) -> pa.Scalar:
    return pa.scalar(value, SCHEMA.field(name).type)


def _column(name: str, values: Iterable[object]) -> pa.Array:
    return pa.array(values, SCHEMA.field(name).type)


def _properties(cases: Sequence[Result]) -> pa.Array:
    offsets, names, values = [0], list[str](), list[str]()
    for case in cases:
        kept = [name for name in case.properties if name not in VERSIONS]
        names += kept
        values += [case.properties[name][:MOST_MESSAGE] for name in kept]
        offsets.append(len(names))
    return pa.MapArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.array(names, pa.string()), pa.array(values, pa.string())
    )
