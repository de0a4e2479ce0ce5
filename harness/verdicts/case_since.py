"""A case on one run of the history: what the run says of it, and since when it is so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import duckdb

_SAID = ("area", "outcome", "message", "signature", "layer", "upstream")
Place = tuple[str, str, str, str]  # run, lane, topology, case


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
    before: str
    since: str
    area: str = ""
    outcome: str = ""  # "" for a case that the run does not have
    message: str = ""
    signature: str = ""
    layer: str = ""
    upstream: tuple[str, ...] = ()


def said_by(
    cursor: duckdb.DuckDBPyConnection, runs: Iterable[str]
) -> Mapping[Place, Mapping[str, Any]]:
    """What these runs say of their cases, as fields of CaseSince."""
    rows = cursor.execute(
        f'SELECT run, lane, topology, "case", {", ".join(_SAID)} '  # noqa: S608
        "FROM cases WHERE run IN (SELECT unnest(?))",
        [sorted(runs)],
    ).fetchall()
    return {
        row[:4]: {**dict(zip(_SAID, row[4:], strict=True)), "upstream": tuple(row[-1])}
        for row in rows
    }
