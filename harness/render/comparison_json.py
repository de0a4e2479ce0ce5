"""A comparison as plain values, for a program to read."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from harness.diagnosis.signature import headline
from harness.verdicts.allow import Allowed
from harness.verdicts.compare import decide
from harness.verdicts.comparison import Comparison, Side
from harness.verdicts.effects import Effect, by_area, effect_on
from harness.verdicts.finding import Finding
from harness.verdicts.words import Verdict


def as_data(comparison: Comparison, allowed: Allowed) -> dict[str, Any]:
    """Return the decision, both stacks, and every case that is not unchanged."""
    decision = decide(comparison, allowed.entries.keys())
    return {
        "exit_code": decision.exit_code,
        "answer": decision.sentence,
        "base": _side(comparison.base),
        "candidate": _side(comparison.candidate),
        "open": {
            "cases": comparison.open.cases,
            "reruns": comparison.open.reruns,
            "attributions": comparison.open.attributions,
        },
        "moved": _moved(comparison),
        "not_run_on_base": len(comparison.not_run_on_base),
        "lanes": list(comparison.lanes),
        "not_asked": list(comparison.not_asked),
        "counts": {str(verdict): count for verdict, count in comparison.counts.items()},
        "cases": [
            _compared(case, allowed, comparison)
            for case in comparison.findings
            if case.verdict != Verdict.UNCHANGED
        ],
    }


def _side(side: Side) -> dict[str, Any]:
    return {
        "stack": side.name,
        "versions": dict(side.versions),
        "wheels": dict(side.wheels),
        "reused": len(side.reused),
        "oldest_reused": next(iter(side.reused), None),
    }


def _moved(comparison: Comparison) -> dict[str, Any] | None:
    if comparison.move is None:
        return None
    areas = {
        area: {str(effect): counts[effect] for effect in Effect}
        for area, counts in by_area(comparison).items()
    }
    return {"from": comparison.move.base, "to": comparison.move.candidate, "areas": areas}


def _compared(case: Finding, allowed: Allowed, comparison: Comparison) -> dict[str, Any]:
    entry = allowed.entries.get(case.key)
    return {
        "case": case.key,
        "ids": list(case.ids),
        "verdict": str(case.verdict),
        "effect": effect_on(case) if comparison.move else None,
        "expected": case.expected,
        "layer": case.layer,
        "failure": headline(case.message),
        "issues": list(case.issues),
        "rerun_cases": list(case.rerun_cases),
        "reused": {
            "base": comparison.base.reused_of(case.key),
            "candidate": comparison.candidate.reused_of(case.key),
        },
        "component": case.component,
        "attributed_case": case.attributed_case or None,
        "note": case.note,
        "costs": [asdict(cost) for cost in case.costs],
        "changes": [asdict(change) for change in case.changes],
        "signed_off_by": entry.signed_off_by if entry else None,
    }
