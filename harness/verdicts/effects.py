"""Effects on each case of moving to another framework. docs/glossary.md defines the words."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from enum import StrEnum

from harness.model.outcome import Answer
from harness.verdicts.comparison import Comparison
from harness.verdicts.finding import Finding
from harness.verdicts.words import Verdict


class Effect(StrEnum):
    """The effect of moving on a case, in the order in which tables show them."""

    WORKS_ON_BOTH = "works on both"
    BROKEN_ON_BOTH = "broken on both"
    FIXED = "fixed by moving"
    BROKEN = "broken by moving"
    NOT_AVAILABLE = "not available after moving"
    SKIPPED = "skipped after moving"
    ONLY_AFTER = "only after moving"
    FLAKY = "flaky"


def effect(was: Answer | None, now: Answer | None, *, skipped: bool) -> Effect | None:
    """Return the effect by the answers on both sides; None where neither has one.

    ``skipped`` is whether the candidate has the case but did not measure it.
    """
    if was is None:
        return Effect.ONLY_AFTER if now else None
    if now is None:
        return Effect.SKIPPED if skipped else Effect.NOT_AVAILABLE
    if now is Answer.WORKS:
        return Effect.WORKS_ON_BOTH if was is Answer.WORKS else Effect.FIXED
    return Effect.BROKEN if was is Answer.WORKS else Effect.BROKEN_ON_BOTH


def effect_on(case: Finding) -> Effect | None:
    """Return the effect on a compared case; None if neither side measured it."""
    if case.verdict == Verdict.FLAKY:
        return Effect.FLAKY
    skipped = case.candidate.unmeasured > 0
    return effect(case.base.answer, case.candidate.answer, skipped=skipped)


def by_area(comparison: Comparison) -> Mapping[str, Counter[Effect]]:
    """Count each area's cases by effect; return {} where the framework stays the same."""
    counts = defaultdict[str, Counter[Effect]](Counter)
    for case in comparison.findings if comparison.move else ():
        if has := effect_on(case):
            counts[case.area][has] += 1
    return dict(sorted(counts.items()))


def of_all(areas: Mapping[str, Counter[Effect]]) -> Counter[Effect]:
    """Count the cases of all areas by effect."""
    return sum(areas.values(), Counter[Effect]())
