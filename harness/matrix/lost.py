"""Cells that died: their cases are in the run as not run, with the cause, instead of nowhere."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from harness.history.run import Run, RunMetadata
from harness.junit.properties import LOST, VERSIONS
from harness.junit.result import MOST_MESSAGE, Result

if TYPE_CHECKING:
    import duckdb

_KNOWN = """
SELECT "case", area, topology, expected, upstream FROM cases
WHERE lane = $lane AND run = (
    SELECT run FROM cases WHERE lane = $lane
    GROUP BY run, stack ORDER BY stack = $stack DESC, run DESC LIMIT 1
)
ORDER BY ALL
"""


@dataclass(frozen=True)
class Lost:
    """A planned cell without a report that can be read."""

    lane: str
    shard: str  # NUMBER/COUNT
    cause: str


def known_cases(connection: duckdb.DuckDBPyConnection, stack: str, lane: str) -> list[Result]:
    """Return the cases of the last run with the lane, of this stack or else of any, as not run."""
    rows = connection.execute(_KNOWN, {"lane": lane, "stack": stack}).fetchall()
    return [
        replace(
            _lost(id_, lane),
            area=area,
            topology=topology,
            expected=expected,
            upstream=tuple(upstream),
        )
        for id_, area, topology, expected, upstream in rows
    ]


def completed(
    run: Run | None,
    stack: str,
    metadata: RunMetadata,
    lost: Sequence[Lost],
    known: Mapping[str, Iterable[Result]],
) -> Run:
    """Return the run, or an empty one, with those ``known`` cases of lost cells that it lacks.

    A lane of which nothing is known gets one line that stands for the cell.
    """
    if run is None:
        assert metadata.time is not None
        run = _empty(stack, metadata, metadata.time)
    cases = {case.place: case for case in run.cases}
    for lane in dict.fromkeys(each.lane for each in lost):
        why = _cause([each for each in lost if each.lane == lane])
        there = list(known.get(lane, ())) or [_lost(f"cell of lane {lane}", lane)]
        for case in there:
            cases.setdefault(case.place, replace(case, message=why[:MOST_MESSAGE]))
    said_of_lost = "\0".join(f"{each.lane} {each.shard} {each.cause}" for each in lost)
    return replace(
        run,
        cases=tuple(cases[key] for key in sorted(cases)),
        digest=hashlib.sha256(f"{run.digest}\0{said_of_lost}".encode()).hexdigest(),
    )


def _lost(case: str, lane: str) -> Result:
    return Result(case, lane=lane, properties={LOST: "cell"})


def _cause(lost: Sequence[Lost]) -> str:
    return "not run: " + "\n".join(f"cell {each.lane} {each.shard}: {each.cause}" for each in lost)


def _empty(stack: str, metadata: RunMetadata, time: datetime) -> Run:
    return Run(
        time=time,
        stack=stack,
        commit=metadata.commit,
        machine=metadata.machine,
        versions=dict.fromkeys(VERSIONS, ""),
        cases=(),
        digest=hashlib.sha256(f"{stack}\0{time.isoformat()}".encode()).hexdigest(),
    )
