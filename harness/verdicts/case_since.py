"""A case on one run of the history: what the run says of it, and since when it is so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.diagnosis.cause import Cause
from harness.verdicts.rules import statement

if TYPE_CHECKING:
    import duckdb

_SAID = ("area", "outcome", "message", "signature", "layer", "upstream")


@dataclass(frozen=True, kw_only=True)
class CaseSince:
    """``before`` is the run that the case is compared with, ``since`` the one with which its
    present answer began; ``""`` for none.
    """

    run: str  # that the fields below ``since`` describe
    stack: str
    lane: str
    topology: str
    case: str
    before: str = ""
    since: str = ""
    area: str = ""
    outcome: str = ""  # "" for a case that the run does not have
    message: str = ""
    signature: str = ""
    layer: str = ""
    upstream: tuple[str, ...] = ()

    @property
    def cause(self) -> Cause:
        """Why the case failed; false for a case that did not."""
        return Cause(self.layer, self.signature)


def cases_of(cursor: duckdb.DuckDBPyConnection, rules: Iterable[str]) -> list[dict[str, Any]]:
    """Return each row of the rules' statements as the fields of a class of CaseSince.

    A statement's columns are named as the fields; what is NULL is left to the field's default.
    """
    found = []
    for rule in rules:
        rows = cursor.execute(statement(rule)).fetchall()
        names = [name for name, *_ in cursor.description or ()]
        found += [{n: v for n, v in zip(names, row, strict=True) if v is not None} for row in rows]
    said = _said_by(cursor, {fields["run"] for fields in found})
    for fields in found:
        place = (fields["run"], fields["lane"], fields["topology"], fields["case"])
        fields.update(said.get(place, {}))
    return found


def _said_by(
    cursor: duckdb.DuckDBPyConnection, runs: Iterable[str]
) -> Mapping[tuple[str, ...], Mapping[str, Any]]:
    """What these runs say of their cases, by run, lane, topology and case."""
    rows = cursor.execute(
        f'SELECT run, lane, topology, "case", {", ".join(_SAID)} '  # noqa: S608
        "FROM cases WHERE run IN (SELECT unnest(?))",
        [sorted(runs)],
    ).fetchall()
    return {
        row[:4]: {**dict(zip(_SAID, row[4:], strict=True)), "upstream": tuple(row[-1])}
        for row in rows
    }
