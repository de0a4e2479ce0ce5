"""Two stacks' reports compared: a verdict on each case, and one decision about the candidate."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from harness.diagnosis.cause import signature_of
from harness.diagnosis.signature import first_line, generalised, headline
from harness.junit.properties import NOT_EXECUTED
from harness.junit.report import Report
from harness.junit.result import Result
from harness.model.outcome import Answer
from harness.verdicts.alignment import aligned
from harness.verdicts.comparison import Comparison, Side, side
from harness.verdicts.costs import larger_programs, slower_steps
from harness.verdicts.differences import differences
from harness.verdicts.finding import Finding, Tally, counted
from harness.verdicts.upstream import Row
from harness.verdicts.words import REFUSALS, VERDICTS, Verdict, change

# In words, and by which numbers; a case has the first that it deserves.
_COSTS = {
    Verdict.LARGER: ("larger as compiled", larger_programs),
    Verdict.SLOWER: ("slower on the host", slower_steps),
}
_CHANGED, _WITH = "other facts", "with other facts"


def compare(
    base: Sequence[Report],
    candidate: Sequence[Report],
    reruns_base: Sequence[Report] = (),
    reruns_candidate: Sequence[Report] = (),
    rows: Sequence[Row] = (),
) -> Comparison:
    """Compare the candidate's cases with the base's, lane by lane and topology by topology.

    The reports of a side are its lanes and shards; reruns are more runs of some of its cases. An
    unexpected pass works. A failure counts whether or not an expectation declares it; where it
    does, ``Finding.expected`` says so. What the two sides ask of two frameworks is one case.

    Raises BadInputError when one side's reports are of several stacks.
    """
    before, after, move = aligned(side(base, reruns_base), side(candidate, reruns_candidate))
    keys = before.runs.keys() | after.runs.keys()
    cases = [_compared(key, before, after, rows) for key in keys]
    return Comparison(base=before, candidate=after, findings=_in_order(cases), move=move)


def without_runs_on_base(comparison: Comparison, keys: Collection[str]) -> Comparison:
    """Return the comparison with cases that were left out on the base, as expected to be equal.

    Those that work on the candidate are unchanged, those that fail there are still failing, and
    none of them is newly measured.
    """
    left_out = {
        case.key: Verdict.UNCHANGED if case.candidate.always_works else Verdict.STILL_FAILING
        for case in comparison.of(Verdict.NEWLY_MEASURED)
        if case.key in keys and case.base == Tally()
    }
    cases = [
        replace(case, verdict=left_out.get(case.key, case.verdict)) for case in comparison.findings
    ]
    return replace(comparison, findings=_in_order(cases), not_run_on_base=frozenset(left_out))


def _in_order(cases: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(cases, key=lambda case: (VERDICTS.index(case.verdict), case.key)))


@dataclass(frozen=True)
class Decision:
    """Result of ``xla-harness qualify``: its exit code, and the reason in a sentence."""

    exit_code: int
    sentence: str


def decide(comparison: Comparison, allowed: Collection[str] = ()) -> Decision:
    """Return the answer; ``allowed`` are the keys of what was signed off.

    2: can't tell. A side has no measured case, or nothing speaks against the candidate but a
    flaky case that may be a regression (``Finding.undecided``), or only the quick cases ran.
    1: something regressed, as expected or not, or is missing, and nobody has signed it off.
    0: neither.
    """
    for each in (comparison.base, comparison.candidate):
        if not each.measured:
            return Decision(2, f"Can't tell: no case was measured on {each.name}.")
    against = [f for f in comparison.of(*REFUSALS) if f.key not in allowed]
    if against:
        return Decision(1, f"Refused: {', '.join(_counts(against))}.")
    undecided = undecided_of(comparison)
    if undecided:
        return Decision(2, f"Can't tell: {len(undecided)} flaky, which may be a regression.")
    if comparison.open.cases:
        return Decision(2, "Can't tell yet: nothing regressed among the quick cases.")
    but = f", but for {len(allowed)} signed off" if allowed else ""
    words = {verdict: text for verdict, (text, _) in _COSTS.items()} | {Verdict.CHANGED: _WITH}
    for verdict, text in words.items():
        count = len(comparison.of(verdict))
        but += f"; {count} {text}" if count else ""
    idle = sum(
        runs[0].works and NOT_EXECUTED in runs[0].properties
        for runs in comparison.candidate.runs.values()
    )
    but += f"; {idle} passed without executing anything" if idle else ""
    lanes = f" on {' and '.join(comparison.lanes)}" if comparison.lanes else ""
    left_out = f" Not asked: {', '.join(comparison.not_asked)}." if comparison.not_asked else ""
    return Decision(0, f"Qualified{lanes}: nothing regressed, nothing is missing{but}.{left_out}")


def _counts(against: Sequence[Finding]) -> Iterator[str]:
    for verdict in REFUSALS:
        if text := counted([case for case in against if case.verdict == verdict], verdict):
            yield text


def undecided_of(comparison: Comparison) -> tuple[Finding, ...]:
    """Return the cases that more runs may show to be regressions."""
    return tuple(case for case in comparison.findings if case.undecided)


def _compared(key: str, before: Side, after: Side, rows: Sequence[Row]) -> Finding:
    base, candidate = before.runs.get(key, ()), after.runs.get(key, ())
    every = (*candidate, *base)
    broken = _broken(candidate) or _broken(base)
    row = next((row for row in rows if row.names(every[0].id)), None)
    was, now = _tally(base), _tally(candidate)
    finding = Finding(
        key=key,
        case=every[0].id,
        ids=tuple(dict.fromkeys(run.id for run in (*base, *candidate))),
        area=every[0].area,
        lane=every[0].lane,
        topology=every[0].topology,
        verdict=_verdict(was, now),
        expected=now.answer is Answer.EXPECTED,
        base=was,
        candidate=now,
        layer=broken.layer if broken else "",
        message=broken.message if broken else "",
        signature=broken.signature if broken else signature_of(every[0].id, ""),
        issues=_issues(broken, every, row),
        note=_note(base, candidate, row),
    )
    if finding.verdict == Verdict.MISSING:
        why = _cause(candidate, after, base[0])
        signature = signature_of(finding.case, why)
        return replace(finding, layer="", note="", message=why, signature=signature)
    if finding.verdict != Verdict.UNCHANGED:
        return finding
    # Two frameworks compile two programs for one case.
    same = before.framework_of(key) == after.framework_of(key)
    return _with_facts(finding, base, candidate, same_framework=same)


def _with_facts(
    finding: Finding,
    base: Sequence[Result],
    candidate: Sequence[Result],
    *,
    same_framework: bool,
) -> Finding:
    """Return a case that works on both sides with what its facts say of the difference."""
    changes = differences(base, candidate) if same_framework else ()
    notes = [f"{_CHANGED}: {', '.join(map(str, changes))}"] if changes else []
    if changes:
        finding = replace(finding, verdict=Verdict.CHANGED, changes=changes, note=notes[0])
    for verdict, (words, risen) in _COSTS.items():
        if costs := risen(base, candidate):
            note = "; ".join([f"{words}: {', '.join(map(str, costs))}", *notes])
            return replace(finding, verdict=verdict, costs=costs, note=note)
    return finding


def _verdict(base: Tally, candidate: Tally) -> Verdict:
    if base.is_flaky or candidate.is_flaky:
        return Verdict.FLAKY
    return change(base.answer, candidate.answer)


def _tally(runs: Sequence[Result]) -> Tally:
    works = sum(run.works for run in runs)
    unmeasured = sum(not run.measured for run in runs)
    expected = sum(run.outcome.answer is Answer.EXPECTED for run in runs)
    return Tally(works, len(runs) - works - unmeasured, unmeasured, expected)


def _broken(runs: Sequence[Result]) -> Result | None:
    return next((run for run in runs if run.measured and not run.works), None)


def _cause(candidate: Sequence[Result], after: Side, case: Result) -> str:
    """Return why the candidate has no answer for the case."""
    if candidate:
        return first_line(f"skipped: {candidate[0].message}")
    return after.why_missing(case)


def _issues(broken: Result | None, every: Sequence[Result], row: Row | None) -> tuple[str, ...]:
    """Return the declared cause, first that of the broken run; without one, the watched issues."""
    declared = [run.expectation for run in (broken, *every) if run and run.expectation]
    if declared:
        return (declared[0],)
    return row.issues if row else every[0].upstream


def _note(base: Sequence[Result], candidate: Sequence[Result], row: Row | None) -> str:
    was, is_ = _broken(base), _broken(candidate)
    notes = []
    if was and is_ and was.layer != is_.layer:
        notes.append(f"the base broke at {was.layer}: {headline(was.failure)}")
    elif was and is_ and generalised(was.failure) != generalised(is_.failure):
        notes.append(f"the base failed otherwise: {headline(was.failure)}")
    last = is_ or was
    if last and row and row.is_before(last.layer):
        notes.append(f"broke at {last.layer}, before the {row.layer} that it is about")
    return "; ".join(notes)
