"""Runs cases without faults, then with one each, and says which faults were seen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from queue import Empty, Queue

from harness import frameworks
from harness.errors import BadInputError
from harness.isolation import libc
from harness.junit.report import Report, Result, read
from harness.lanes.virtual import host_callbacks
from harness.lanes.virtual.callbacks import PLANTER_VARIABLE
from harness.model.outcome import Answer as CaseAnswer
from harness.model.outcome import Kind
from harness.sensitivity.answers import changes_nothing, plugin_of
from harness.sensitivity.fault import (
    PLUGIN,
    PYTHON_VARIABLE,
    Compared,
    Fault,
    Recorded,
    case_file,
    compared_file,
    programs_of,
    python_file,
)
from harness.sensitivity.plan import Sample, planned
from harness.sensitivity.python_faults import called, difference, folder_of, places
from harness.sensitivity.score import Answer, Score, Verdict
from harness.sensitivity.session import PLAN_VARIABLE, PROGRESS, Plan, number_of

Say = Callable[[str], None]
_PLUGIN = "harness.sensitivity.session"
_PLANTER = "harness.sensitivity.planting"
_COMPARER = "harness.sensitivity.equivalence"
_LEAST_DEADLINE, _SLOWER = 10.0, 4.0  # seconds, and how much slower a case may be with a fault
_COMPARISON_DEADLINE = 60.0  # seconds for one pair of programs
_EXECUTIONS = 10  # of a case, which take as long as compiling two programs and running each twice
_OPTIMISM = 3  # how much faster than without a fault the cases may be, to plan enough of them
_FOR_COMPARISONS = 0.1  # of the budget
_FOR_KERNELS = 0.2  # of it, and besides
_RAN = (0, 1, 5)  # exit codes of pytest: all passed, some failed, none says anything of the lane
_LIVE, _PLAIN = 1.0, 20.0  # seconds between two lines of progress


@dataclass(frozen=True)
class Request:
    """What is asked.

    Attributes:
        paths: for pytest, and its further arguments.
        lane: where cases run.
        operators: the names of those to plant.
        packages: in whose Python faults are planted; in programs if there is none.
        budget: for all, in seconds.
        sample: which faults are planted, and how many at most.
        jobs: how many processes run cases.
        folder: for programs, reports and logs; it is there and empty.
    """

    paths: Sequence[str]
    lane: str
    operators: Collection[str]
    packages: Sequence[str]
    budget: float
    sample: Sample
    jobs: int
    folder: Path


def measure(request: Request, say: Say) -> Score:
    """Plant faults and say what became of each.

    Raises BadInputError when pytest can't run the cases, or none compiles a program.
    """
    start = time.time()
    programs = request.folder / "programs"
    programs.mkdir()
    say("running the cases without a fault")
    report = _session(request, "without", Plan(programs), 0, say)
    works, red, idle = _sorted(report)
    of_case = _functions_in if request.packages else _programs_and_plugin
    found = {result.id: of_case(programs, result) for result in works}
    idle += [case for case, recorded in found.items() if not recorded]
    found = {case: recorded for case, recorded in found.items() if recorded}
    if not found:
        raise BadInputError(
            f"{' '.join(request.paths)}: no case passes on lane {request.lane} and has a place "
            f"for a fault: {len(red)} do not pass, {len(idle)} have none"
        )
    by_id = {result.id: result for result in works}
    areas = {case: by_id[case].properties.get("area", "") for case in found}
    until = start + request.budget * (1 - _FOR_COMPARISONS)
    faults = _affordable(
        planned(areas, found, request.operators, request.sample),
        {case: by_id[case].seconds for case in found},
        (until - time.time()) * request.jobs,
    )
    deadlines = {case: _deadline(by_id[case]) for case in found}
    plan = Plan(programs, tuple((fault, deadlines[fault.case]) for fault in faults), until)
    say(f"planting up to {len(faults)} faults, in {len(found)} cases, while the budget lasts")
    report = _session(request, "with", plan, len(faults), say)
    with_fault = {number_of(result.id): result for result in report.results.values()}
    names = {one.digest: one.name for recorded in found.values() for one in recorded}
    answers = [
        replace(_answer(fault, with_fault.get(fault.number)), area=areas[fault.case])
        for fault in faults
    ]
    answers = _compared(answers, programs, request.jobs, say)
    answers = _compared_in_cases(request, answers, programs, say)
    answers = [replace(one, name=names[one.fault.program]) for one in answers]
    cost = {case: by_id[case].seconds for case in found}
    return Score(answers, red, sorted(idle), cost)


def _session(request: Request, name: str, plan: Plan, total: int, say: Say) -> Report:
    """A session of pytest in a process of its own; its report."""
    folder = request.folder
    plan.write(folder / f"{name}.json")
    progress, log, report = (folder / f"{name}.{end}" for end in ("done", "log", "xml"))
    command = [
        *(sys.executable, "-m", "pytest", *request.paths, f"--lane={request.lane}"),
        *("-p", _PLUGIN, f"--junitxml={report}", "-q", "--tb=no", "-rN"),
        *(("-n", str(request.jobs)) if request.jobs > 1 else ("-o", "xla_workers=0")),
    ]
    environment = {
        **frameworks.without_lanes(os.environ),
        PLANTER_VARIABLE: _PLANTER,
        PLAN_VARIABLE: str(folder / f"{name}.json"),
        PROGRESS: str(progress),
        PYTHON_VARIABLE: ":".join(filter(None, map(folder_of, request.packages))),
    }
    with log.open("wb") as output, _telling(progress, total, say):
        done = subprocess.run(
            command,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
            preexec_fn=libc.DieWithParent(),
        )
    if not report.exists() or done.returncode not in _RAN:
        last = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
        raise BadInputError(
            f"pytest {' '.join(request.paths)} ended with {done.returncode}\n{last}"
        )
    return read(report)


@contextmanager
def _telling(progress: Path, total: int, say: Say) -> Iterator[None]:
    """Say every now and then how many cases have run; a session writes a byte for each."""
    ended = threading.Event()
    start = time.monotonic()

    def tell() -> None:
        while not ended.wait(_LIVE if sys.stderr.isatty() else _PLAIN):
            done = progress.stat().st_size if progress.exists() else 0
            minutes, seconds = divmod(int(time.monotonic() - start), 60)
            say(f"[{minutes}:{seconds:02}] {done}{f' of {total}' if total else ''} cases")

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _sorted(report: Report) -> tuple[list[Result], dict[str, str], list[str]]:
    """The cases that pass, the outcomes of those that do not, and those that were not measured."""
    works, red, idle = list[Result](), dict[str, str](), list[str]()
    for one in report.results.values():
        if one.outcome == Kind.PASSED:
            works.append(one)
        elif one.outcome.answer is None:
            idle.append(one.id)
        else:
            red[one.id] = one.outcome.value
    return works, red, idle


def _affordable(
    faults: Sequence[Fault], seconds: Mapping[str, float], budget: float
) -> list[Fault]:
    """The first faults: more than there is time for, but not all that could be thought of."""
    taken, chosen = 0.0, list[Fault]()
    for fault in faults:
        if taken > budget * _OPTIMISM and chosen:
            break
        taken += seconds[fault.case]
        chosen.append(fault)
    return chosen


def _deadline(result: Result) -> float:
    return max(_LEAST_DEADLINE, _SLOWER * result.seconds)


def _answer(fault: Fault, result: Result | None) -> Answer:
    """What a run with the fault says; of a case that passes, no more than that it does."""
    if result is None:
        return Answer(fault, "", Verdict.NOT_RUN)
    planted, executed, refused = (
        int(result.properties.get(f"faults_{name}", "0"))
        for name in ("planted", "executed", "refused")
    )
    passed = result.outcome.answer is CaseAnswer.WORKS
    if planted and not passed:
        verdict = Verdict.SEEN
    elif executed:
        verdict = Verdict.UNSEEN
    elif refused:
        verdict = Verdict.REFUSED
    else:
        verdict = Verdict.ABSENT if passed or not result.outcome.answer else Verdict.DISTURBED
    told = f"{result.outcome}: {result.failure}" if result.failure else str(result.outcome)
    return Answer(fault, "", verdict, result.seconds, told)


def _compared(answers: Sequence[Answer], programs: Path, jobs: int, say: Say) -> list[Answer]:
    """The answers, with the faults that were not seen divided by whether they change anything."""
    answers = [_by_submissions(one, programs) for one in answers]
    unseen = [one for one in answers if one.verdict == Verdict.UNSEEN and one.fault.in_program]
    if unseen:
        say(f"comparing the programs of {len(unseen)} faults that were not seen")
    parts = [unseen[number::jobs] for number in range(jobs)]
    with ThreadPoolExecutor(jobs) as pool:
        known = [one for part in pool.map(_Comparer(programs).all, parts) for one in part]
    found = {one.number: one for one in known}
    return [_with(one, found.get(one.fault.number)) for one in answers]


def _programs_and_plugin(folder: Path, result: Result) -> list[Recorded]:
    """What a case compiles, and whom it asks of devices."""
    plugin = plugin_of(result.properties)
    return [*programs_of(folder, result.id), *([plugin] if plugin.places else [])]


def _functions_in(folder: Path, result: Result) -> list[Recorded]:
    """The functions of the packages that a case calls, with their places."""
    lines = called(python_file(case_file(folder, result.id)))
    found = (Recorded(name, _places(name, tuple(lines[name])), "", name) for name in lines)
    return [one for one in found if one.places]


@cache
def _places(name: str, lines: tuple[int, ...]) -> dict[str, list[str]]:
    return places(name, lines)


def _compared_in_cases(
    request: Request, answers: Sequence[Answer], programs: Path, say: Say
) -> list[Answer]:
    """The answers, with programs compared that call functions of the process that made them."""
    unknown = [one for one in answers if one.verdict == Verdict.UNSEEN and one.unknown]
    faults = tuple(
        (one.fault, max(_COMPARISON_DEADLINE, _EXECUTIONS * one.seconds))
        for one in unknown
        if _calls_back(programs / one.fault.program)
    )
    if not faults:
        return list(answers)
    there = [fault for fault, _ in faults]
    say(f"comparing {len(there)} of them in their cases: kernels call functions of those")
    until = time.time() + request.budget * _FOR_KERNELS
    plan = Plan(programs, faults, until, compare=True)
    _session(request, "compared", plan, len(there), say)
    files = {fault.number: compared_file(programs, fault) for fault in there}
    found = {
        number: Compared(**json.loads(path.read_text()))
        for number, path in files.items()
        if path.exists()
    }
    asked = [
        replace(one, told="nobody could compare it in its case") if one.fault in there else one
        for one in answers
    ]
    return [_with(one, found.get(one.fault.number)) for one in asked]


def _calls_back(program: Path) -> bool:
    return host_callbacks.TARGET.encode() in program.read_bytes()


def _by_submissions(answer: Answer, programs: Path) -> Answer:
    """Of a wrong answer that was not seen: whether it has changed what was submitted."""
    if answer.fault.program != PLUGIN or answer.verdict != Verdict.UNSEEN:
        return answer
    if changes_nothing(programs, answer.fault):
        return replace(answer, verdict=Verdict.EQUIVALENT, told="the same programs")
    return replace(answer, told="other programs")


def _with(answer: Answer, told: Compared | None) -> Answer:
    if answer.fault.in_python and answer.verdict == Verdict.UNSEEN:
        fault = answer.fault
        return replace(
            answer, difference=tuple(difference(fault.program, fault.operator, fault.place))
        )
    if told is None:
        return answer
    verdict = Verdict.EQUIVALENT if told.equivalent else Verdict.UNSEEN
    return replace(
        answer,
        verdict=verdict,
        told=told.why,
        difference=tuple(told.difference),
        unknown=told.equivalent is None,
    )


class _Comparer:
    """Compares programs in processes of their own, since a fault may end or stop one."""

    def __init__(self, programs: Path) -> None:
        self._programs = programs

    def all(self, answers: Sequence[Answer]) -> list[Compared]:
        """What is told of each fault."""
        found: list[Compared] = []
        waiting = list(answers)
        while waiting:
            told = self._some(waiting)
            found += told
            waiting = waiting[len(told) :]
            if waiting:  # the first of them is what the process ended or stopped at
                why = "the comparison ended or stopped"
                found.append(Compared(waiting.pop(0).fault.number, None, why, ()))
        return found

    def _some(self, answers: Sequence[Answer]) -> list[Compared]:
        """Of the first ones, for as long as one process lives."""
        texts = "".join(f"{one.fault.text(self._programs)}\n" for one in answers)
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
            for line in stdout:
                lines.put(line)
            lines.put("")

        threading.Thread(target=listen, daemon=True).start()
        threading.Thread(target=_feed, args=(process, texts), daemon=True).start()
        found = []
        try:
            while line := lines.get(timeout=_COMPARISON_DEADLINE):
                found.append(Compared(**json.loads(line)))
        except Empty:
            pass
        finally:
            process.kill()
            process.wait()
        return found


def _feed(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(text)
        process.stdin.close()
    except BrokenPipeError:
        pass  # it has ended, which its answers show
