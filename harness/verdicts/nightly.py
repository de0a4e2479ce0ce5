"""Runs compared with the history before them. Each rule is a statement in ``sql/``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.diagnosis.cause import Cause
from harness.errors import PARTIAL
from harness.history.names import SetAside
from harness.junit.properties import VERSIONS
from harness.verdicts.damage import deciding
from harness.verdicts.finding import Finding, Findings
from harness.verdicts.rules import ask_about, findings, statement
from harness.verdicts.words import NIGHTLY, REFUSALS

if TYPE_CHECKING:
    import duckdb


_RULES = ("changed", "died", "missing", "slower")


@dataclass(frozen=True)
class CauseCount:
    """Count of the failures with one cause. ``first`` is the earliest run known with it."""

    cause: Cause
    cases: int
    stacks: int
    results: int
    first: str
    example: str  # a case
    message: str  # of one of them


@dataclass(frozen=True, kw_only=True)
class Verdicts(Findings):
    """Verdicts of the rules on the requested runs."""

    runs: tuple[str, ...]  # those that exist
    causes: tuple[CauseCount, ...]  # the largest first
    outcomes: Mapping[str, int]
    versions: Mapping[str, Mapping[str, str]]  # run to component to version, of all runs named
    unread: tuple[SetAside, ...] = ()  # damaged files that may be a baseline

    @property
    def refusals(self) -> tuple[Finding, ...]:
        """Regressions that no expectation declares, and missing cases."""
        return tuple(each for each in self.of(*REFUSALS) if not each.expected)

    @property
    def exit_code(self) -> int:
        """1 for an unexpected regression or a missing case, 3 where nobody can tell, else 0."""
        if self.refusals:
            return 1
        return PARTIAL if self.unread else 0


def judge(
    connection: duckdb.DuckDBPyConnection,
    runs: Sequence[str],
    days: int | None = None,
    set_aside: Iterable[SetAside] = (),
) -> Verdicts:
    """Apply every rule to these runs, in view of at most ``days`` of history before them.

    ``set_aside`` are the history's files that can't be read.
    """
    cursor = ask_about(connection, runs, days)
    sorted_findings = findings(cursor, _RULES)
    sorted_findings.sort(
        key=lambda f: (NIGHTLY.index(f.verdict), f.case, f.lane, f.topology, f.run, f.costs)
    )
    causes = [
        CauseCount(Cause(*row[:2]), *row[2:])
        for row in cursor.execute(statement("causes")).fetchall()
    ]
    outcomes = cursor.execute(
        "SELECT outcome, count(*) FROM cases JOIN asked USING (run) GROUP BY ALL ORDER BY ALL"
    ).fetchall()
    judged = [run for (run,) in cursor.execute("SELECT run FROM asked ORDER BY run").fetchall()]
    named = {run for v in sorted_findings for run in (v.run, v.before, v.since) if run}
    named |= {*judged} | {each.first for each in causes}
    return Verdicts(
        findings=tuple(sorted_findings),
        runs=tuple(judged),
        causes=tuple(causes),
        outcomes=dict(outcomes),
        versions=versions_of(cursor, named),
        unread=deciding(cursor, set_aside),
    )


def flaky_lines(
    connection: duckdb.DuckDBPyConnection, runs: Sequence[str]
) -> set[tuple[str, str, str, str]]:
    """Return case, stack, lane and topology of each that was flaky between these runs."""
    cursor = ask_about(connection, runs, days=0)
    rows = cursor.execute('SELECT DISTINCT "case", stack, lane, topology FROM flaky').fetchall()
    return set(rows)


def versions_of(
    cursor: duckdb.DuckDBPyConnection, runs: set[str]
) -> Mapping[str, Mapping[str, str]]:
    """Stack, commit and components of each run."""
    names = ("stack", "commit", *VERSIONS)
    columns = ", ".join(f"any_value({name})" for name in names)
    rows = cursor.execute(
        f"SELECT run, {columns} FROM cases WHERE run IN (SELECT unnest(?)) GROUP BY run",  # noqa: S608
        [sorted(runs)],
    ).fetchall()
    return {run: dict(zip(names, row, strict=True)) for run, *row in rows}


def changed_components(was: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the components whose versions differ between two runs: ``jax 0.4.33 -> 0.7.1``."""
    names = [name for name in now if name not in ("stack", "commit") and was.get(name, "")]
    return [f"{n} {was[n]} -> {now[n]}" for n in names if now[n] and was[n] != now[n]]
