"""One stack's reports held against another's: a verdict for each case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.diagnosis.signature import first_line, generalised
from harness.junit.report import Report, Result
from harness.verdicts.findings import VERDICTS, Comparison, Finding, Tally, Verdict
from harness.verdicts.side import Side, side
from harness.verdicts.upstream import Row


def compare(
    base: Sequence[Report],
    candidate: Sequence[Report],
    reruns_base: Sequence[Report] = (),
    reruns_candidate: Sequence[Report] = (),
    rows: Sequence[Row] = (),
) -> Comparison:
    """Hold the candidate's cases against the base's, lane by lane and topology by topology.

    Broken is broken, whether or not an expectation declared it, and an unexpected pass works. The
    reports of a side are its lanes and shards; reruns are more runs of some of its cases.

    Raises BadInputError when one side's reports are of several stacks.
    """
    before, after = side(base, reruns_base), side(candidate, reruns_candidate)
    keys = sorted(before.runs.keys() | after.runs.keys())
    findings = [_finding(key, before, after, rows) for key in keys]
    findings.sort(key=lambda finding: (VERDICTS.index(finding.verdict), finding.key))
    return Comparison(before, after, tuple(findings))


def _finding(key: str, before: Side, after: Side, rows: Sequence[Row]) -> Finding:
    base, candidate = before.runs.get(key, ()), after.runs.get(key, ())
    every = (*candidate, *base)
    broken = _broken(candidate) or _broken(base)
    row = next((row for row in rows if row.names(every[0].id)), None)
    found = Finding(
        key=key,
        id=every[0].id,
        area=every[0].properties.get("area", ""),
        lane=every[0].lane,
        verdict=_verdict(_tally(base), _tally(candidate)),
        base=_tally(base),
        candidate=_tally(candidate),
        layer=broken.layer if broken else "",
        failure=first_line(broken.failure) if broken else "",
        issues=_issues(broken, every, row),
        note=_note(base, candidate, row),
    )
    if found.verdict == Verdict.NEWLY_UNMEASURED:
        return replace(found, layer="", note="", failure=_cause(candidate, after, base[0]))
    return found


def _verdict(base: Tally, candidate: Tally) -> Verdict:
    if base.differs or candidate.differs:
        return Verdict.FLAKY
    was, is_ = base.works or base.broken, candidate.works or candidate.broken
    if was and is_:
        return {
            (True, True): Verdict.UNCHANGED,
            (True, False): Verdict.REGRESSED,
            (False, True): Verdict.FIXED,
            (False, False): Verdict.STILL_BROKEN,
        }[base.always_works, candidate.always_works]
    if was:
        return Verdict.NEWLY_UNMEASURED
    return Verdict.NEWLY_MEASURED if is_ else Verdict.UNCHANGED


def _tally(runs: Sequence[Result]) -> Tally:
    works = sum(run.works for run in runs)
    unmeasured = sum(not run.measured for run in runs)
    return Tally(works, len(runs) - works - unmeasured, unmeasured)


def _broken(runs: Sequence[Result]) -> Result | None:
    return next((run for run in runs if run.measured and not run.works), None)


def _cause(candidate: Sequence[Result], after: Side, case: Result) -> str:
    """Why the candidate has no answer."""
    if candidate:
        return first_line(f"skipped: {candidate[0].properties.get('outcome_detail', '')}")
    return after.why_missing(case)


def _issues(broken: Result | None, every: Sequence[Result], row: Row | None) -> tuple[str, ...]:
    """The declared cause, that of the run that broke before others'; else who watches the case."""
    declared = [run.expectation for run in (broken, *every) if run and run.expectation]
    if declared:
        return (declared[0],)
    return row.issues if row else every[0].upstream


def _note(base: Sequence[Result], candidate: Sequence[Result], row: Row | None) -> str:
    was, is_ = _broken(base), _broken(candidate)
    notes = []
    if was and is_ and was.layer != is_.layer:
        notes.append(f"the base broke at {was.layer}: {first_line(was.failure)}")
    elif was and is_ and generalised(was.failure) != generalised(is_.failure):
        notes.append(f"the base failed otherwise: {first_line(was.failure)}")
    last = is_ or was
    if last and row and row.is_before(last.layer):
        notes.append(f"broke at {last.layer}, before the {row.layer} that it is about")
    return "; ".join(notes)
