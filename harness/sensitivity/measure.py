"""Runs cases without faults, then with one fault each, and decides which faults were seen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from queue import Empty, Queue

from harness.errors import BadInputError
from harness.junit.report import Report
from harness.junit.result import Result
from harness.lanes.virtual import host_callbacks
from harness.model.outcome import Kind
from harness.sensitivity.answers import changes_nothing, plugin_of
from harness.sensitivity.fault import (
    PLUGIN,
    Compared,
    Recorded,
    case_file,
    compared_file,
    programs_of,
    python_file,
)
from harness.sensitivity.python_calls import called
from harness.sensitivity.python_faults import difference, places
from harness.sensitivity.python_source import functions
from harness.sensitivity.rounds import in_rounds
from harness.sensitivity.runs import Request, Say, affordable, deadline, judged, run_session
from harness.sensitivity.sample import planned
from harness.sensitivity.score import FaultResult, FaultVerdict, Score
from harness.sensitivity.session import SessionPlan, number_of

_COMPARER = "harness.sensitivity.equivalence"
_COMPARISON_DEADLINE = 60.0  # seconds for one pair of programs
_EXECUTIONS = 10  # a comparison compiles two programs and runs each twice: this many runs of a case
_FOR_COMPARISONS = 0.1  # share of the budget
_FOR_KERNELS = 0.2  # on top of the budget


def measure(request: Request, say: Say) -> Score:
    """Plant faults, and return the result of each.

    Raises BadInputError if pytest can't run the cases, or no case compiles a program.
    """
    start = time.time()
    programs = request.folder / "programs"
    programs.mkdir()
    say("running the cases without a fault")
    report = run_session(request, "without", SessionPlan(programs), 0, say)
    works, red, idle = _sorted(report)
    cost = {result.id: result.duration for result in works}
    if request.modules and works:
        results = in_rounds(request, works, start + request.budget, say)
        return Score(results, red, sorted(idle), cost, "module")
    of_case = _functions_in if request.packages else _programs_and_plugin
    programs_by_case = {result.id: of_case(programs, result) for result in works}
    idle += [case for case, recorded in programs_by_case.items() if not recorded]
    programs_by_case = {case: recorded for case, recorded in programs_by_case.items() if recorded}
    if not programs_by_case:
        raise BadInputError(
            f"{' '.join(request.paths)}: no case passes on lane {request.lane} and has a place "
            f"for a fault: {len(red)} do not pass, {len(idle)} have none"
        )
    by_id = {result.id: result for result in works}
    areas = {case: by_id[case].area for case in programs_by_case}
    until = start + request.budget * (1 - _FOR_COMPARISONS)
    faults = affordable(
        planned(areas, programs_by_case, request.operators, request.sample),
        cost,
        (until - time.time()) * request.jobs,
    )
    deadlines = {case: deadline(by_id[case]) for case in programs_by_case}
    plan = SessionPlan(programs, tuple((fault, deadlines[fault.case]) for fault in faults), until)
    say(
        f"planting up to {len(faults)} faults, in {len(programs_by_case)} cases, "
        "while the budget lasts"
    )
    report = run_session(request, "with", plan, len(faults), say)
    with_fault = {number_of(result.id): result for result in report.results.values()}
    names = {
        program.digest: program.name
        for recorded in programs_by_case.values()
        for program in recorded
    }
    results = [
        replace(judged(fault, with_fault.get(fault.number)), area=areas[fault.case])
        for fault in faults
    ]
    results = _compared(results, programs, request.jobs, say)
    results = _compared_in_cases(request, results, programs, say)
    results = [replace(result, name=names[result.fault.program]) for result in results]
    return Score(results, red, sorted(idle), cost)


def _sorted(report: Report) -> tuple[list[Result], dict[str, str], list[str]]:
    """Return cases that pass, the outcomes of those that do not, and cases without an answer."""
    works, red, idle = list[Result](), dict[str, str](), list[str]()
    for result in report.results.values():
        if result.outcome == Kind.PASSED:
            works.append(result)
        elif result.outcome.answer is None:
            idle.append(result.id)
        else:
            red[result.id] = result.outcome.value
    return works, red, idle


def _compared(
    results: Sequence[FaultResult], programs: Path, jobs: int, say: Say
) -> list[FaultResult]:
    """Return the results, where faults that were not seen but change nothing are equivalent."""
    results = [_by_submissions(result, programs) for result in results]
    unseen = [
        result
        for result in results
        if result.verdict == FaultVerdict.UNSEEN and result.fault.in_program
    ]
    if unseen:
        say(f"comparing the programs of {len(unseen)} faults that were not seen")
    parts = [unseen[number::jobs] for number in range(jobs)]
    with ThreadPoolExecutor(jobs) as pool:
        known = [each for part in pool.map(_Comparer(programs).all, parts) for each in part]
    comparisons = {comparison.number: comparison for comparison in known}
    return [_with(result, comparisons.get(result.fault.number)) for result in results]


def _programs_and_plugin(folder: Path, result: Result) -> list[Recorded]:
    """Return the programs that a case compiles, and the plugin if it asks that about devices."""
    plugin = plugin_of(result.properties)
    return [*programs_of(folder, result.id), *([plugin] if plugin.places else [])]


def _functions_in(folder: Path, result: Result) -> list[Recorded]:
    """Return the functions of the packages that a case calls, with their places."""
    recorded = (
        Recorded(name, _places(name, frozenset(lines.intersection(own))), "", name)
        for module, lines in called(python_file(case_file(folder, result.id))).items()
        for name, own in functions(module).items()
    )
    return [function for function in recorded if function.places]


@cache
def _places(name: str, executed: frozenset[int]) -> dict[str, list[str]]:
    return places(name, executed) if executed else {}


def _compared_in_cases(
    request: Request, results: Sequence[FaultResult], programs: Path, say: Say
) -> list[FaultResult]:
    """Compare the programs that call functions of their process there; return all results."""
    unknown = [
        result for result in results if result.verdict == FaultVerdict.UNSEEN and result.unknown
    ]
    faults = tuple(
        (result.fault, max(_COMPARISON_DEADLINE, _EXECUTIONS * result.seconds))
        for result in unknown
        if _calls_back(programs / result.fault.program)
    )
    if not faults:
        return list(results)
    there = [fault for fault, _ in faults]
    say(f"comparing {len(there)} of them in their cases: kernels call functions of those")
    until = time.time() + request.budget * _FOR_KERNELS
    plan = SessionPlan(programs, faults, until, compare=True)
    run_session(request, "compared", plan, len(there), say)
    files = {fault.number: compared_file(programs, fault) for fault in there}
    comparisons = {
        number: Compared(**json.loads(path.read_text()))
        for number, path in files.items()
        if path.exists()
    }
    marked = [
        replace(result, explanation="nobody could compare it in its case")
        if result.fault in there
        else result
        for result in results
    ]
    return [_with(result, comparisons.get(result.fault.number)) for result in marked]


def _calls_back(program: Path) -> bool:
    return host_callbacks.TARGET.encode() in program.read_bytes()


def _by_submissions(result: FaultResult, programs: Path) -> FaultResult:
    """Call a wrong answer equivalent if it was not seen and has not changed what was submitted."""
    if result.fault.program != PLUGIN or result.verdict != FaultVerdict.UNSEEN:
        return result
    if changes_nothing(programs, result.fault):
        return replace(result, verdict=FaultVerdict.EQUIVALENT, explanation="the same programs")
    return replace(result, explanation="other programs")


def _with(result: FaultResult, comparison: Compared | None) -> FaultResult:
    if result.fault.in_python and result.verdict == FaultVerdict.UNSEEN:
        fault = result.fault
        return replace(
            result, difference=tuple(difference(fault.program, fault.operator, fault.place))
        )
    if comparison is None:
        return result
    verdict = FaultVerdict.EQUIVALENT if comparison.equivalent else FaultVerdict.UNSEEN
    return replace(
        result,
        verdict=verdict,
        explanation=comparison.why,
        difference=tuple(comparison.difference),
        unknown=comparison.equivalent is None,
    )


class _Comparer:
    """Compares programs in processes of their own, since a fault may end or stop one."""

    def __init__(self, programs: Path) -> None:
        self._programs = programs

    def all(self, results: Sequence[FaultResult]) -> list[Compared]:
        """Return the comparison of each fault."""
        comparisons: list[Compared] = []
        waiting = list(results)
        while waiting:
            more = self._some(waiting)
            comparisons += more
            waiting = waiting[len(more) :]
            if waiting:  # the process ended or stopped at the first of these
                why = "the comparison ended or stopped"
                comparisons.append(Compared(waiting.pop(0).fault.number, None, why, ()))
        return comparisons

    def _some(self, results: Sequence[FaultResult]) -> list[Compared]:
        """Return the comparisons of the first faults, up to the one that ends the process."""
        texts = "".join(f"{result.fault.text(self._programs)}\n" for result in results)
        process = subprocess.Popen(
            [sys.executable, "-m", _COMPARER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        lines: Queue[str] = Queue()
        stdout = process.stdout

        def listen() -> None:
            with stdout:
                for line in stdout:
                    lines.put(line)
            lines.put("")

        threading.Thread(target=listen, daemon=True).start()
        threading.Thread(target=_feed, args=(process, texts), daemon=True).start()
        comparisons = []
        try:
            while line := lines.get(timeout=_COMPARISON_DEADLINE):
                comparisons.append(Compared(**json.loads(line)))
        except Empty:
            pass
        finally:
            process.kill()
            process.wait()
        return comparisons


def _feed(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(text)
        process.stdin.close()
    except BrokenPipeError:
        pass  # it has ended, which its results show
