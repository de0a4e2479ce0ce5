"""A finding of a night as plain values, for a program to read."""

from __future__ import annotations

from typing import Any

from harness.verdicts.finding import Finding

_FIELDS = ("run", "stack", "lane", "topology", "case", "before", "since", "area", "outcome")
_CAUSE = ("message", "signature", "layer")


def as_data(finding: Finding) -> dict[str, Any]:
    """Return the finding's values; ``number``, ``was`` and ``now`` are of what became slower."""
    values = {name: getattr(finding, name) for name in (*_FIELDS, *_CAUSE)}
    number, was, now = next(((c.what, c.was, c.now) for c in finding.costs), ("", None, None))
    values |= {"upstream": finding.issues, "verdict": finding.verdict}
    return {**values, "number": number, "was": was, "now": now}
