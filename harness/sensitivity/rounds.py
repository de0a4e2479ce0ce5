"""Plants slips of whole modules, in rounds: what a case has not seen is planted in another."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from harness.errors import BadInputError
from harness.junit.result import Result
from harness.model.case_id import file_of, function_of
from harness.sensitivity.fault import case_file, python_file
from harness.sensitivity.python_calls import called
from harness.sensitivity.python_faults import difference
from harness.sensitivity.runs import Request, Say, affordable, deadline, judged, run_session
from harness.sensitivity.score import FaultResult, FaultVerdict
from harness.sensitivity.session import SessionPlan, number_of
from harness.sensitivity.whole_modules import Slip, sampled

_FINAL = (FaultVerdict.SEEN, FaultVerdict.REFUSED)
_SHOWN = (FaultVerdict.UNSEEN, FaultVerdict.NOT_EXECUTED)


def in_rounds(
    request: Request, works: Collection[Result], until: float, say: Say
) -> list[FaultResult]:
    """Return the result of each slip of a sample; ``until`` is in seconds since 1970.

    A slip is seen if any of the cases sees it that were asked. If the budget ends within the first
    round, the sample ends at the last slip that was planted.

    Raises BadInputError if no case executes a line of the modules' files.
    """
    slips = sampled(request.modules, request.operators, request.sample)
    executing = _executing(request, slips, works)
    results = [
        FaultResult(
            replace(slip.fault, number=number),
            slip.module,
            FaultVerdict.NOT_RUN if executing[number] else FaultVerdict.NOT_EXECUTED,
        )
        for number, slip in enumerate(slips)
    ]
    by_id = {result.id: result for result in works}
    seconds = {case: result.duration for case, result in by_id.items()}
    for turn in range(request.tries):
        open_ = [
            replace(result.fault, case=cases[turn].id)
            for result, cases in zip(results, executing, strict=True)
            if len(cases) > turn and result.verdict not in _FINAL and len(result.cases) == turn
        ]
        left = until - time.time()
        if not open_ or left <= 0:
            break
        is_last = turn + 1 == request.tries
        ends = until if is_last else time.time() + left / 2
        faults = affordable(open_, seconds, (ends - time.time()) * request.jobs)
        say(f"round {turn + 1}: planting up to {len(faults)} slips")
        plan = SessionPlan(
            request.folder / "programs",
            tuple((fault, deadline(by_id[fault.case])) for fault in faults),
            ends,
        )
        report = run_session(request, f"round-{turn + 1}", plan, len(faults), say)
        by_number = {number_of(result.id): result for result in report.results.values()}
        for fault in faults:
            now = judged(fault, by_number.get(fault.number))
            results[fault.number] = _both(results[fault.number], now)
    unasked = [
        result
        for result, cases in zip(results, executing, strict=True)
        if result.verdict not in _FINAL and 0 < len(result.cases) < min(len(cases), request.tries)
    ]
    if unasked:
        say(f"the budget ended before {len(unasked)} slips were in all cases that were to be asked")
    return [_shown(result) for result in _up_to_the_last(results)]


def _executing(
    request: Request, slips: Sequence[Slip], works: Collection[Result]
) -> list[list[Result]]:
    """Return the cases to ask for each slip, in order: no case if none executes its lines."""
    executing: list[list[Result]] = [[] for _ in slips]
    by_cost = sorted(works, key=lambda result: (result.duration, result.id))
    programs = request.folder / "programs"
    by_case = [called(python_file(case_file(programs, result.id))) for result in by_cost]
    if not any(by_case):  # a share of 0 % would be about another copy of the package
        raise BadInputError(
            f"{' '.join(request.paths)}: no case executes a line of the modules: expected tests "
            f"that import {', '.join(request.traced[:3])}"
        )
    for result, lines in zip(by_cost, by_case, strict=True):
        for slip, cases in zip(slips, executing, strict=True):
            if not lines.get(slip.module, set()).isdisjoint(slip.lines):
                cases.append(result)
    return [_spread(cases, request.sample.first) for cases in executing]


def _spread(by_cost: Sequence[Result], first: Collection[str]) -> list[Result]:
    """Put the ``first`` cases first, then cases of other files, then of other functions."""
    turns: Counter[object] = Counter()

    def turn(result: Result) -> tuple[bool, int, int]:
        function = function_of(result.id)
        turns[function] += 1
        turns[file_of(result.id), turns[function]] += 1
        of_file = turns[file_of(result.id), turns[function]]
        return result.id not in first, turns[function], of_file

    return sorted(by_cost, key=turn)


def _both(before: FaultResult, now: FaultResult) -> FaultResult:
    """Return the result of a slip after another case was asked."""
    if now.verdict == FaultVerdict.NOT_RUN:
        return before
    sees_more = now.verdict == FaultVerdict.SEEN or before.verdict != FaultVerdict.UNSEEN
    return replace(
        now if sees_more else before,
        area=before.area,
        seconds=before.seconds + now.seconds,
        cases=(*before.cases, now.fault.case),
    )


def _up_to_the_last(results: Sequence[FaultResult]) -> Sequence[FaultResult]:
    """Leave out slips after the last one that was planted, if there was no time for all.

    Those that no case executes need no time: with them the share would depend on the machine.
    """
    if all(result.verdict != FaultVerdict.NOT_RUN for result in results):
        return results
    return results[: 1 + max((n for n, result in enumerate(results) if result.cases), default=-1)]


def _shown(result: FaultResult) -> FaultResult:
    """Add the change to a slip that was not seen, of which there is no one case."""
    fault = result.fault
    case = fault.case if result.verdict == FaultVerdict.SEEN else ""
    lines = difference(fault.program, fault.operator, fault.place)
    return replace(
        result,
        fault=replace(fault, case=case),
        name=fault.program,
        difference=tuple(lines) if result.verdict in _SHOWN else (),
    )
