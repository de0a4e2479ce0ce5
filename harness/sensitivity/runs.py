"""Sessions of pytest: cases without faults, or with one fault each, and what their results say."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from harness import frameworks
from harness.errors import BadInputError
from harness.isolation import libc
from harness.junit.report import Report, read
from harness.junit.result import Result
from harness.lanes.virtual.callbacks import PLANTER_VARIABLE
from harness.model.outcome import Answer
from harness.sensitivity.fault import PYTHON_VARIABLE, Fault
from harness.sensitivity.python_source import folder_of, path_of
from harness.sensitivity.sample import Sample
from harness.sensitivity.score import FaultResult, FaultVerdict
from harness.sensitivity.session import PLAN_VARIABLE, PROGRESS, SessionPlan

Say = Callable[[str], None]
_PLUGIN = "harness.sensitivity.session"
_PLANTER = "harness.sensitivity.planting"
_LEAST_DEADLINE, _SLOWER = 10.0, 4.0  # seconds; how much slower a case may be with a fault
_OPTIMISM = 3  # plan this many times the faults that fit the budget: cases may run faster with them
_RAN = (0, 1, 5)  # exit codes of pytest: all passed, some failed, none says anything of the lane
_LIVE, _PLAIN = 1.0, 20.0  # seconds between two lines of progress


@dataclass(frozen=True)
class Request:
    """Options of a measurement.

    Attributes:
        paths: tests, and further arguments for pytest.
        lane: where cases run.
        operators: the names of the operators to use.
        packages: plant faults in the Python of these packages; in programs if there are none.
        budget: total time, in seconds.
        sample: which faults are planted, and how many at most.
        jobs: how many processes run cases.
        folder: for programs, reports and logs; exists and is empty.
        variables: of pytest's environment, besides this process's.
        modules: plant faults in all lines of these functions of these modules.
        tries: how many cases are asked for such a fault, at most.
    """

    paths: Sequence[str]
    lane: str
    operators: Collection[str]
    packages: Sequence[str]
    budget: float
    sample: Sample
    jobs: int
    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    modules: Mapping[str, Collection[str]] = field(default_factory=dict)
    tries: int = 1

    @property
    def traced(self) -> list[str]:
        """Return the files and folders of Python whose executed lines are recorded."""
        return [*map(str, map(path_of, self.modules)), *map(folder_of, self.packages)]


def run_session(request: Request, name: str, plan: SessionPlan, total: int, say: Say) -> Report:
    """Run pytest in a process of its own, and return its report."""
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
        **request.variables,
        # On lane pjrt they are planted in JAX, also in front of this project's own plugin.
        PLANTER_VARIABLE: "" if request.lane == "pjrt" or request.traced else _PLANTER,
        PLAN_VARIABLE: str(folder / f"{name}.json"),
        PROGRESS: str(progress),
        PYTHON_VARIABLE: ":".join(request.traced),
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
    """Print regularly how many cases have run; the session writes a byte for each."""
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


def affordable(faults: Sequence[Fault], seconds: Mapping[str, float], budget: float) -> list[Fault]:
    """Return the first faults: more than there is time for, but not all possible ones."""
    taken, chosen = 0.0, list[Fault]()
    for fault in faults:
        if taken > budget * _OPTIMISM and chosen:
            break
        taken += seconds[fault.case]
        chosen.append(fault)
    return chosen


def deadline(result: Result) -> float:
    return max(_LEAST_DEADLINE, _SLOWER * result.duration)


def judged(fault: Fault, result: Result | None) -> FaultResult:
    """Judge a fault by its case's run; whether an unseen one changes anything is decided later."""
    if result is None:
        return FaultResult(fault, "", FaultVerdict.NOT_RUN)
    planted, executed, refused = (
        int(result.properties.get(f"faults_{name}", "0"))
        for name in ("planted", "executed", "refused")
    )
    passed = result.outcome.answer is Answer.WORKS
    if planted and not passed:
        verdict = FaultVerdict.SEEN
    elif executed:
        verdict = FaultVerdict.UNSEEN
    elif refused:
        verdict = FaultVerdict.REFUSED
    else:
        applicable = result.outcome.answer and not passed
        verdict = FaultVerdict.DISTURBED if applicable else FaultVerdict.ABSENT
    explanation = f"{result.outcome}: {result.failure}" if result.failure else str(result.outcome)
    return FaultResult(fault, "", verdict, result.duration, explanation)
