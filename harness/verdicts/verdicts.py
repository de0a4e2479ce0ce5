"""What a run's cases are, held against the history: each rule is a statement in ``sql/``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import duckdb

from harness.verdicts.rules import ask_about, statement


class Kind(StrEnum):
    """The verdicts; what matters most comes first."""

    REGRESSED = "regressed"
    MISSING = "missing"
    NEW_FAILURE = "new failure"
    CRASHED = "crashed"
    HUNG = "hung"
    STILL_FAILING = "still failing"
    FLAKY = "flaky"
    SLOWER = "slower"
    FIXED = "fixed"

    @property
    def rule(self) -> str:
        """The name of the rule's file in ``sql/``."""
        return self.replace(" ", "_")


KINDS = list(Kind)
REFUSALS = (Kind.REGRESSED, Kind.MISSING)


@dataclass(frozen=True)
class Verdict:
    """One verdict on one case of one run; a case may have several.

    ``before`` is the run that it is held against, ``since`` the one with which the present state
    began. ``number``, ``was`` and ``now`` are what got slower, durations in seconds.
    """

    kind: Kind
    run: str
    stack: str
    lane: str
    topology: str
    case: str
    before: str
    since: str
    area: str = ""
    outcome: str = ""  # "" for a case that the run does not have
    message: str = ""
    signature: str = ""
    layer: str = ""
    upstream: tuple[str, ...] = ()
    number: str = ""
    was: float | None = None
    now: float | None = None

    @property
    def key(self) -> str:
        """The case and where it ran; the id alone for one that says it, or ran nowhere special."""
        if not self.lane or f"[{self.lane}-" in self.case:
            return self.case
        return f"{self.case} @{self.lane}-{self.topology}"


@dataclass(frozen=True)
class Cluster:
    """Failures of one signature. ``first`` is the earliest run that is known with it."""

    signature: str
    cases: int
    stacks: int
    results: int
    first: str
    example: str  # a case
    message: str  # of one of them


@dataclass(frozen=True)
class Verdicts:
    """All that the rules say of the runs that were asked about."""

    runs: tuple[str, ...]  # those that exist
    found: tuple[Verdict, ...]  # in the order of Kind, then by case
    clusters: tuple[Cluster, ...]  # the largest first
    outcomes: Mapping[str, int]
    versions: Mapping[str, Mapping[str, str]]  # run to component to version, of all runs named

    def of(self, *kinds: Kind) -> tuple[Verdict, ...]:
        """The verdicts of these kinds."""
        return tuple(verdict for verdict in self.found if verdict.kind in kinds)

    @property
    def exit_code(self) -> int:
        """1 for a regression or a missing case, else 0."""
        return int(bool(self.of(*REFUSALS)))


def judge(
    connection: duckdb.DuckDBPyConnection, runs: Sequence[str], days: int | None = None
) -> Verdicts:
    """Apply every rule to these runs, in view of at most ``days`` of history before them."""
    cursor = ask_about(connection, runs, days)
    rows = [
        (kind, *row) for kind in KINDS for row in cursor.execute(statement(kind.rule)).fetchall()
    ]
    details = _details(cursor)
    found = [_verdict(row, details) for row in rows]
    found.sort(key=lambda v: (KINDS.index(v.kind), v.case, v.lane, v.topology, v.run, v.number))
    clusters = cursor.execute(statement("clusters")).fetchall()
    outcomes = cursor.execute(
        "SELECT outcome, count(*) FROM cases JOIN asked USING (run) GROUP BY ALL ORDER BY ALL"
    ).fetchall()
    asked = cursor.execute("SELECT run FROM asked ORDER BY run").fetchall()
    named = {run for v in found for run in (v.run, v.before, v.since) if run}
    named |= {run for (run,) in asked} | {cluster[4] for cluster in clusters}
    return Verdicts(
        tuple(run for (run,) in asked),
        tuple(found),
        tuple(Cluster(*row) for row in clusters),
        dict(outcomes),
        versions_of(cursor, named),
    )


def _details(cursor: duckdb.DuckDBPyConnection) -> dict[tuple[str, ...], tuple[Any, ...]]:
    """What the asked runs say of their cases."""
    found = cursor.execute(
        'SELECT run, lane, topology, "case", area, outcome, message, signature, layer, upstream '
        "FROM cases WHERE run IN (SELECT run FROM asked)"
    ).fetchall()
    return {row[:4]: row[4:] for row in found}


def _verdict(row: tuple[Any, ...], details: Mapping[tuple[str, ...], tuple[Any, ...]]) -> Verdict:
    kind, run, stack, lane, topology, case, before, since, number, was, now = row
    known = details.get((run, lane, topology, case), ("", "", "", "", "", ()))
    area, outcome, message, signature, layer, upstream = known
    return Verdict(
        kind=kind,
        run=run,
        stack=stack,
        lane=lane,
        topology=topology,
        case=case,
        before=before or "",
        since=since or "",
        area=area,
        outcome=outcome,
        message=message,
        signature=signature,
        layer=layer,
        upstream=tuple(upstream),
        number=number or "",
        was=was,
        now=now,
    )


def versions_of(
    cursor: duckdb.DuckDBPyConnection, runs: set[str]
) -> Mapping[str, Mapping[str, str]]:
    """Stack, commit and components of each run."""
    names = ("stack", "commit", "python", "torch", "torch_xla", "jax", "jaxlib", "libtpu")
    columns = ", ".join(f"any_value({name})" for name in names)
    found = cursor.execute(
        f"SELECT run, {columns} FROM cases WHERE run IN (SELECT unnest(?)) GROUP BY run",  # noqa: S608
        [sorted(runs)],
    ).fetchall()
    return {run: dict(zip(names, row, strict=True)) for run, *row in found}
