"""Regressions that are not fixed, grouped by cause: the subjects of issues."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.verdicts.case_since import CaseSince, cases_of
from harness.verdicts.nightly import versions_of
from harness.verdicts.rules import ask_about

if TYPE_CHECKING:
    import duckdb

_NEWEST = "SELECT max(run) FROM cases GROUP BY stack"
_WORKING = """
SELECT stack, lane, topology, "case", max(run) AS last FROM cases JOIN outcomes USING (outcome)
GROUP BY ALL HAVING arg_max(answer, run) <> 'broken'
"""


@dataclass(frozen=True, kw_only=True)
class Standing(CaseSince):
    """A case that worked on ``before``, the last good run, and does not since ``since``.

    ``state`` is ``broken`` or ``missing``: not in the last run any more, or skipped there.
    """

    state: str
    flaky: bool

    @property
    def line(self) -> str:
        """A short digest of case, stack, lane and topology; no text of a report is in it."""
        return digest(self.stack, self.lane, self.topology, self.case)[:10]


@dataclass(frozen=True)
class Regression:
    """Standing cases of one stack with one cause."""

    members: tuple[Standing, ...]

    @property
    def first(self) -> Standing:
        """The one to look at."""
        return self.members[0]

    @property
    def key(self) -> str:
        """The cause, the same on every night; without a signature, the run that lost the cases."""
        first = self.first
        alike = first.cause if first.state == "broken" else ("", first.before)
        return digest(first.state, first.stack, *alike)[:16]

    @property
    def lines(self) -> tuple[str, ...]:
        """Its members' lines."""
        return tuple(member.line for member in self.members)

    @property
    def flaky(self) -> bool:
        """Whether all its members are flaky."""
        return all(member.flaky for member in self.members)


@dataclass(frozen=True)
class State:
    """What the newest runs show: regressions, what works, and the versions of every run."""

    regressions: tuple[Regression, ...]  # the largest first
    working: Mapping[str, str]  # line to the last run in which it works, or fails as declared
    versions: Mapping[str, Mapping[str, str]]


def state(connection: duckdb.DuckDBPyConnection) -> State:
    """The state of the whole history as of the newest run of each stack."""
    newest = [run for (run,) in connection.execute(_NEWEST).fetchall()]
    cursor = ask_about(connection, newest)
    standing = [Standing(**fields) for fields in cases_of(cursor, ["standing"])]
    working = {digest(*line)[:10]: run for *line, run in connection.execute(_WORKING).fetchall()}
    named = {*newest, *working.values(), *(r for s in standing for r in (s.before, s.since))}
    return State(grouped(standing), working, versions_of(cursor, named))


def grouped(standing: Iterable[Standing]) -> tuple[Regression, ...]:
    """One for each cause, the largest first."""
    together: dict[str, list[Standing]] = {}
    for each in sorted(standing, key=lambda s: (s.since, s.case, s.lane, s.topology)):
        together.setdefault(Regression((each,)).key, []).append(each)
    made = [Regression(tuple(members)) for members in together.values()]
    return tuple(sorted(made, key=lambda r: (-len(r.members), r.key)))


def digest(*parts: str) -> str:
    """A hexadecimal digest of these texts, whatever they contain."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
