"""A comparison as plain values, for a program to read."""

from __future__ import annotations

from typing import Any

from harness.verdicts.allow import Allowed
from harness.verdicts.compare import decide
from harness.verdicts.findings import Comparison, Finding
from harness.verdicts.words import Verdict


def as_data(comparison: Comparison, allowed: Allowed) -> dict[str, Any]:
    """The decision, both stacks, and every case that is not unchanged."""
    decision = decide(comparison, allowed.entries.keys())
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
        "counts": {str(verdict): count for verdict, count in comparison.counts.items()},
        "findings": [
            _finding(finding, allowed)
            for finding in comparison.findings
            if finding.verdict != Verdict.UNCHANGED
        ],
    }


def _finding(finding: Finding, allowed: Allowed) -> dict[str, Any]:
    entry = allowed.entries.get(finding.key)
    return {
        "case": finding.key,
        "verdict": str(finding.verdict),
        "expected": finding.expected,
        "layer": finding.layer,
        "failure": finding.failure,
        "issues": list(finding.issues),
        "rerun_cases": list(finding.rerun_cases),
        "component": finding.component,
        "attributed_case": finding.attributed_case or None,
        "note": finding.note,
        "signed_off_by": entry.signed_off_by if entry else None,
    }
