"""A comparison as plain values, for a program to read."""

from __future__ import annotations

from typing import Any

from harness.verdicts.allow import Allowed
from harness.verdicts.compare import decide
from harness.verdicts.comparison import ComparedCase, Comparison
from harness.verdicts.words import Verdict


def as_data(comparison: Comparison, allowed: Allowed) -> dict[str, Any]:
    """The decision, both stacks, and every case that is not unchanged."""
    decision, move = decide(comparison, allowed.entries.keys()), comparison.move
    return {
        "exit_code": decision.exit_code,
        "answer": decision.sentence,
        "base": {"stack": comparison.base.name, "versions": dict(comparison.base.versions)},
        "candidate": {
            "stack": comparison.candidate.name,
            "versions": dict(comparison.candidate.versions),
        },
        "open": {
            "reruns": comparison.open.reruns,
            "attributions": comparison.open.attributions,
        },
        "moved": {"from": move.base, "to": move.candidate} if move else None,
        "counts": {str(verdict): count for verdict, count in comparison.counts.items()},
        "cases": [
            _compared(case, allowed)
            for case in comparison.cases
            if case.verdict != Verdict.UNCHANGED
        ],
    }


def _compared(case: ComparedCase, allowed: Allowed) -> dict[str, Any]:
    entry = allowed.entries.get(case.key)
    return {
        "case": case.key,
        "ids": list(case.ids),
        "verdict": str(case.verdict),
        "expected": case.expected,
        "layer": case.layer,
        "failure": case.failure,
        "issues": list(case.issues),
        "rerun_cases": list(case.rerun_cases),
        "component": case.component,
        "attributed_case": case.attributed_case or None,
        "note": case.note,
        "signed_off_by": entry.signed_off_by if entry else None,
    }
