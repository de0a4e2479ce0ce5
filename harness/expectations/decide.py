"""Decide from the evidence which entries can go, can be narrowed, or are missing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.expectations import ranges
from harness.expectations.condition import Versions
from harness.expectations.entry import Expectation
from harness.expectations.entry_set import Expectations
from harness.expectations.evidence import Evidence, StackEvidence
from harness.model.case_id import function_of
from harness.model.outcome import Kind, Outcome

Ranges = tuple[tuple[str, str], ...]  # a Condition's
GONE = None  # instead of ranges: the case needs the entry on no stack


@dataclass(frozen=True)
class Missing:
    """Failure that no entry declares, and the ranges of the stacks on which it occurs."""

    function: str
    ranges: Ranges
    outcome: Kind
    signature: str


@dataclass
class Decisions:
    """Decisions by case. A case in none of the fields stays as it is."""

    evidence: Evidence
    passing: dict[str, dict[str, Ranges | None]] = field(  # entry's where to case to new ranges
        default_factory=lambda: defaultdict(dict)
    )
    missing: dict[Missing, list[str]] = field(default_factory=lambda: defaultdict(list))
    messages: dict[Missing, str] = field(default_factory=dict)  # one of the failures
    flaky: set[str] = field(default_factory=set)
    too_few: set[str] = field(default_factory=set)  # cases with fewer runs than asked for
    otherwise: set[str] = field(default_factory=set)  # fail, but not as their entry declares
    inseparable: set[str] = field(default_factory=set)  # no range tells their stacks apart


@dataclass(frozen=True)
class _CaseFacts:
    """Answers and entries of one case on all stacks."""

    id: str
    answers: dict[int, StackEvidence | None]
    entries: dict[int, Expectation | None]  # the one that applies on each given stack


def decide(
    entries: Sequence[Expectation],
    evidence: Evidence,
    known: Sequence[Versions],
    runs: int,
) -> Decisions:
    """Compare the entries with the evidence. A change needs ``runs`` equal answers of a stack.

    Raises BadInputError when two entries apply to a case on one of the stacks.
    """
    on = [Expectations(entries, stack) for stack in evidence.stacks]
    elsewhere = ranges.without(known, evidence.stacks)
    decisions = Decisions(evidence)
    for id_, answers in sorted(evidence.answers.items()):
        facts = _CaseFacts(id_, answers, {i: stack.find(id_) for i, stack in enumerate(on)})
        if any(answer and answer.is_flaky for answer in answers.values()):
            decisions.flaky.add(id_)
            continue
        _passes(decisions, facts, evidence.stacks, elsewhere, runs)
        _fails(decisions, facts, evidence.stacks, elsewhere, runs)
    return decisions


def _passes(
    decisions: Decisions,
    facts: _CaseFacts,
    stacks: Sequence[Versions],
    elsewhere: Sequence[Versions],
    runs: int,
) -> None:
    """Decide about the case's entries that apply to stacks on which it passes."""
    for entry in {e.where: e for e in facts.entries.values() if e is not None}.values():
        applies = [i for i, other in facts.entries.items() if other is entry]
        passes = [i for i in applies if (a := facts.answers.get(i)) and a.passes]
        proven = [i for i in passes if (a := facts.answers[i]) and a.runs >= runs]
        if len(proven) < len(passes):
            decisions.too_few.add(facts.id)
        if not proven:
            continue
        keep = [stacks[i] for i in applies if i not in proven]
        unmeasured = [stack for stack in elsewhere if entry.condition.holds(stack)]
        if not keep and not unmeasured:
            decisions.passing[entry.where][facts.id] = GONE
            continue
        separated = ranges.separate([*keep, *unmeasured], [stacks[i] for i in proven])
        if separated is None:
            decisions.inseparable.add(facts.id)
        else:
            narrowed = ranges.narrow(entry.condition, *separated)
            decisions.passing[entry.where][facts.id] = tuple(narrowed.items())


def _fails(
    decisions: Decisions,
    facts: _CaseFacts,
    stacks: Sequence[Versions],
    elsewhere: Sequence[Versions],
    runs: int,
) -> None:
    """Decide about the failures of the case that no entry declares."""
    ways: dict[tuple[Kind, str], list[int]] = defaultdict(list)
    messages: dict[tuple[Kind, str], str] = {}
    for i, answer in sorted(facts.answers.items()):
        if answer is None or not answer.failures:
            continue
        failure, entry = answer.failures[0], facts.entries[i]
        if entry is not None:
            _otherwise(decisions, facts.id, failure, entry)
        elif answer.runs < runs:
            decisions.too_few.add(facts.id)
        elif len(answer.ways) > 1:
            decisions.flaky.add(facts.id)
        else:
            (way,) = answer.ways
            ways[way].append(i)
            messages.setdefault(way, failure.message)
    for way, failing in ways.items():
        narrowest = _ranges_of(facts, failing, stacks, elsewhere)
        if narrowest is None:
            decisions.inseparable.add(facts.id)
            continue
        missing = Missing(function_of(facts.id), narrowest, *way)
        decisions.missing[missing].append(facts.id)
        decisions.messages.setdefault(missing, messages[way])


def _otherwise(decisions: Decisions, id_: str, failure: Outcome, entry: Expectation) -> None:
    if not entry.describes(failure):
        decisions.otherwise.add(id_)


def _ranges_of(
    facts: _CaseFacts,
    failing: Sequence[int],
    stacks: Sequence[Versions],
    elsewhere: Sequence[Versions],
) -> Ranges | None:
    """Return the ranges of a new entry, or None if none separates the failing stacks."""
    if len(stacks) == 1:
        return (ranges.only(stacks[0]),)
    # Where the case was skipped, either will do, unless it has an entry there.
    others = [
        i
        for i in range(len(stacks))
        if i not in failing and (facts.answers.get(i) is not None or facts.entries[i] is not None)
    ]
    absent = [i for i in range(len(stacks)) if i not in facts.answers]
    separated = ranges.separate(
        [stacks[i] for i in failing],
        [stacks[i] for i in others],
        [*elsewhere, *(stacks[i] for i in absent)],
    )
    if separated is None:
        return None
    return (separated,) if separated[1] else ()
