"""Regressions that are not fixed, grouped by cause: the subjects of issues."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.verdicts.groups import Group, grouped
from harness.verdicts.nightly import versions_of
from harness.verdicts.rules import ask_about, findings
from harness.verdicts.words import Verdict

if TYPE_CHECKING:
    import duckdb

_NEWEST = "SELECT max(run) FROM cases GROUP BY stack"
_WORKING = """
SELECT stack, lane, topology, "case", max(run) AS last FROM cases JOIN outcomes USING (outcome)
GROUP BY ALL HAVING arg_max(answer, run) <> 'broken'
"""


@dataclass(frozen=True)
class Regression(Group):
    """Cases of one stack with one cause that worked on ``before`` and do not since ``since``.

    Their verdict is *regressed*, or *missing*: not in the last run any more, or skipped there.
    """

    @property
    def key(self) -> str:
        """The cause, the same on every night; without a signature, the run that lost the cases."""
        first = self.first
        alike = first.cause if self.verdict == Verdict.REGRESSED else ("", first.before)
        return digest(self.verdict, first.stack, *alike)[:16]

    @property
    def lines(self) -> tuple[str, ...]:
        """A short digest of each member's case and place; no text of a report is in it."""
        places = ((each.stack, each.lane, each.topology, each.case) for each in self.members)
        return tuple(digest(*place)[:10] for place in places)

    @property
    def flaky(self) -> bool:
        """Return whether all its members are flaky."""
        return all(member.flaky for member in self.members)


@dataclass(frozen=True)
class State:
    """State of the newest runs: regressions, what works, and the versions of every run."""

    regressions: tuple[Regression, ...]  # regressed before missing, then the largest first
    working: Mapping[str, str]  # line to the last run in which it works, or fails as declared
    versions: Mapping[str, Mapping[str, str]]


def state(connection: duckdb.DuckDBPyConnection) -> State:
    """Return the state of the whole history as of the newest run of each stack."""
    newest = [run for (run,) in connection.execute(_NEWEST).fetchall()]
    cursor = ask_about(connection, newest)
    standing = findings(cursor, ["standing"])
    standing.sort(key=lambda each: (each.since, each.case, each.lane, each.topology))
    working = {digest(*line)[:10]: run for *line, run in connection.execute(_WORKING).fetchall()}
    named = {*newest, *working.values(), *(r for s in standing for r in (s.before, s.since))}
    regressions = grouped(standing, lambda each: Regression((each,)).key, Regression)
    return State(regressions, working, versions_of(cursor, named))


def digest(*parts: str) -> str:
    """Return a hexadecimal digest of these texts, whatever they contain."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
