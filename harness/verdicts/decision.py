"""The one answer about the candidate."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from harness.verdicts.findings import Comparison, Finding, Verdict

REFUSALS = (Verdict.REGRESSED, Verdict.NEWLY_UNMEASURED)


@dataclass(frozen=True)
class Decision:
    """How ``xla-harness qualify`` ends, and why, in a sentence."""

    exit_code: int
    sentence: str


def decide(comparison: Comparison, allowed: Collection[str] = ()) -> Decision:
    """The answer; ``allowed`` are the keys of what was signed off.

    2: can't tell. A side has no measured case, or nothing stands against the candidate but a
    flaky case that may be a regression (``Finding.undecided``).
    1: something regressed or is newly unmeasured, and nobody has signed it off.
    0: neither.
    """
    for side in (comparison.base, comparison.candidate):
        if not side.measured:
            return Decision(2, f"Can't tell: no case was measured on {side.name}.")
    against = [f for f in comparison.of(*REFUSALS) if f.key not in allowed]
    if against:
        counts = (f"{sum(f.verdict == v for f in against)} {v}" for v in REFUSALS)
        return Decision(1, f"Refused: {', '.join(c for c in counts if c[:2] != '0 ')}.")
    undecided = undecided_of(comparison)
    if undecided:
        return Decision(2, f"Can't tell: {len(undecided)} flaky, which may be a regression.")
    but = f", but for {len(allowed)} signed off" if allowed else ""
    return Decision(0, f"Qualified: nothing regressed, nothing is newly unmeasured{but}.")


def undecided_of(comparison: Comparison) -> tuple[Finding, ...]:
    """The cases that more runs may show to be regressions."""
    return tuple(finding for finding in comparison.findings if finding.undecided)
