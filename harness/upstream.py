"""The rows of ``fixtures/upstream.toml``: what a release gets right, in an engineer's words."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import BadInputError
from harness.expectations import glob_pattern
from harness.outcome import Kind
from harness.record import Record

_KEYS = {"title", "issues", "cases"}


@dataclass(frozen=True)
class Row:
    """A statement about the stack, and the cases that prove or refute it."""

    title: str
    issues: tuple[str, ...]
    cases: tuple[str, ...]

    def select(self, records: Sequence[Record]) -> list[Record]:
        """The records of its cases."""
        patterns = [glob_pattern(case) for case in self.cases]
        return [r for r in records if any(pattern.fullmatch(r.id) for pattern in patterns)]


def verdict(records: Sequence[Record]) -> str:
    """``ok``, ``wrong`` or ``unmeasured``: a row is ok only if every measured case passed."""
    kinds = {record.kind for record in records} - {Kind.SKIPPED}
    if not kinds:
        return "unmeasured"
    return "ok" if kinds <= {Kind.PASSED, Kind.UNEXPECTED_PASS} else "wrong"


def load_optional(path: Path | None) -> tuple[Row, ...]:
    """Read the file, if one is named; raises BadInputError naming the file and the key."""
    if path is None:
        return ()
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadInputError(f"{path}: {error}") from error
    rows = []
    for number, row in enumerate(data.get("row", []), 1):
        if row.keys() != _KEYS:
            raise BadInputError(f"{path}#{number}: expected the keys {', '.join(sorted(_KEYS))}")
        rows.append(Row(row["title"], tuple(row["issues"]), tuple(row["cases"])))
    return tuple(rows)
