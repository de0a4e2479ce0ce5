"""Runs pytest items in forked processes: one for each, or one for several that share it."""

from __future__ import annotations

import builtins
import faulthandler
import os
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest

from harness.errors import BadInputError
from harness.isolation import libc, post_mortem, pytest_child
from harness.isolation.case_environment import LaneSetup, full_environment
from harness.isolation.case_files import CaseFiles
from harness.isolation.child import Endpoints, Setup, Tell, run_child
from harness.isolation.foreign import ForeignFile, FoundTest, found
from harness.isolation.post_mortem import Death, KernelOomKills
from harness.isolation.preload import preload
from harness.isolation.supervisor import GRACE, CaseProcess, CommandResult
from harness.isolation.thread_limits import out_of_threads, out_of_threads_text
from harness.isolation.threads import ForkGuard, NotForkableError
from harness.isolation.watchdog import Watchdog
from harness.lanes.events import Events
from harness.messages.case_messages import (
    ItemDone,
    ListTests,
    NotListed,
    PhaseReported,
    RunItem,
    TestsListed,
    Warned,
)
from harness.messages.typed import Message
from harness.model.case import Case
from harness.model.outcome import Kind
from harness.scratch import Scratch

# To gather the memory of a process with torch and JAX in huge pages takes as long as they save in
# the forks and exits of so many cases. The first results come before it.
_CASES_THAT_PAY, _CASES_BEFORE = 75, 5
# XLA's client has a thread for each device, whose stack the kernel counts as memory.
_STACK = 8 << 20


@dataclass(frozen=True)
class Limits:
    """Limits of a case: bytes of private memory beyond the parent's, bytes of output kept."""

    memory_bytes: int | None
    output_bytes: int


@dataclass
class ItemResult:
    """Result of running a case. Times are in seconds."""

    reports: list[pytest.TestReport] = field(default_factory=list)
    death: Death | None = None  # after those reports
    sections: list[tuple[str, str]] = field(default_factory=list)  # output until the last report
    stdout: str = ""  # after it
    stderr: str = ""
    events: Events = field(default_factory=Events)
    process: Events = field(default_factory=Events)  # of cases before it in its process, too
    runtime_start: dict[str, float] = field(default_factory=dict)  # seconds, by phase
    wall: float = 0.0
    began: float = 0.0  # of the machine's monotonic clock


def _cases_of_a_process(session: pytest.Session) -> int:
    """Return how many tests this process will run: a worker's share of the session's."""
    workers = getattr(session.config, "workerinput", {"workercount": 1})["workercount"]
    return len(session.items) // int(workers)


class Isolator:
    """The one place where a pytest process forks."""

    def __init__(
        self,
        session: pytest.Session,
        limits: Limits,
        modules: Sequence[str],
        lanes: Mapping[str, LaneSetup],
    ) -> None:
        self._session = session
        self._limits = limits
        self._modules = modules
        self._lanes = lanes
        self._warning_filters = list(warnings.filters)
        self._guard = ForkGuard()
        self._oom_kills = KernelOomKills()
        self._child: CaseProcess | None = None
        self._index: dict[pytest.Item, int] = {}
        self._preloaded: set[str] = set()
        self._forks = 0
        self._scratch = Scratch()
        self._watchdog = Watchdog(self._scratch.path)
        self._files: CaseFiles | None = None  # of the child
        libc.adopt_orphans()

    def run(
        self, item: pytest.Item, case: Case, following: tuple[pytest.Item, Case] | None
    ) -> ItemResult:
        """Run ``item``; ``following`` is the next item if it may come into the same process.

        Raises NotForkableError, KeyboardInterrupt and pytest.exit.Exception.
        """
        start = time.monotonic()
        stays = following is not None and case.may_share_with(following[1])
        try:
            child = self._child or self._fork(case)
            files = self._files
            assert files is not None
            if not self._index:
                self._index = {item: number for number, item in enumerate(self._session.items)}
            before = files.log.read()
            command = RunItem(
                index=self._index[item],
                following=self._index[following[0]] if following and stays else None,
            )
            self._oom_kills.mark()
            result = child.run(command, case.deadline)
            self._child = child if stays and result.death is None else None
            if self._child is None:
                child.close()
        except BaseException:
            self.close(grace=0)
            raise
        run = self._interpret(result)
        run.process = files.log.read()
        run.events = run.process.after(before)
        if self._child is None or run.process.damage:  # the next case gets a new log
            self.close()
        run.began, run.wall = start, time.monotonic() - start
        return run

    def collect(self, file: ForeignFile) -> list[FoundTest]:
        """Collect the tests of a file that this process must not import.

        Raises CollectError or Skipped if the import in a forked process ended that way.
        """
        try:
            child = self._fork(file.case, file)
            result = child.run(ListTests(), file.case.deadline)
        except (BadInputError, NotForkableError) as error:
            raise file.CollectError(f"xla-harness: {error}") from error
        finally:
            self.close(grace=0)
        if result.death is not None:
            death = self._explained(result.death, result.stderr)
            stacks = f"{death.python_stack}\n{death.native_stack}"
            raise file.CollectError(f"{death.kind} in its import: {death.message}\n{stacks}")
        match result.phases[-1].message:
            case TestsListed(tests):
                return found(tests)
            case NotListed(reason, skipped=True):
                pytest.skip(reason, allow_module_level=True)
            case NotListed(reason):
                raise file.CollectError(reason)
            case other:
                raise AssertionError(other)

    def close(self, grace: float = GRACE) -> None:
        """Leave no process behind; a shared one gets ``grace`` seconds to leave by itself."""
        if self._child is not None:
            child, self._child = self._child, None
            child.close(grace)
        if self._files is not None:
            files, self._files = self._files, None
            files.close()

    def leave(self) -> None:
        """Give up, in a forked process, the descriptors that are the parent's."""
        self._watchdog.mark()
        self._scratch.leave()
        if self._files is not None:
            self._files.log.close()

    def finish(self) -> None:
        """Leave neither a process nor a file behind."""
        self.close()
        self._scratch.close()
        self._watchdog.close()

    def _fork(self, case: Case, file: ForeignFile | None = None) -> CaseProcess:
        if not self._preloaded:  # the first one
            preload(self._modules)
        name = case.target.lane
        lane = self._lanes[name]
        if name not in self._preloaded:
            lane.preload()
            self._preloaded.add(name)
        if self._forks == _CASES_BEFORE and _cases_of_a_process(self._session) >= _CASES_THAT_PAY:
            libc.use_huge_pages()
        self._forks += 1
        faulthandler.cancel_dump_traceback_later()  # pytest's own, a thread: deadlines replace it
        self._guard.check()
        self._files = CaseFiles.create(self._scratch)
        memory = self._limits.memory_bytes
        beyond = _private_bytes() + case.target.topology.total * _STACK
        setup = Setup(
            environment={
                **self._files.environment,
                **self._watchdog.environment,
                **full_environment(case, lane),
            },
            memory_bytes=None if memory is None else memory + beyond,
            parent=os.getpid(),
        )
        self._child = CaseProcess(
            partial(_child_main, self, case, setup, file),
            output_bytes=self._limits.output_bytes,
            echo=self._session.config.getoption("capture") == "no",
        )
        return self._child

    def _interpret(self, result: CommandResult) -> ItemResult:
        run = ItemResult(death=result.death and self._explained(result.death, result.stderr))
        for phase in result.phases:
            run.stdout += phase.stdout
            run.stderr += phase.stderr
            match phase.message:
                case PhaseReported() as message:
                    report = self._report(message)
                    run.sections += captured(report, run.stdout, run.stderr)
                    report.sections += run.sections  # and those of all phases before, as pytest's
                    run.reports.append(report)
                    run.stdout = run.stderr = ""
                case Warned() as message:
                    self._warn(message)
                case ItemDone() as message:
                    run.runtime_start = message.runtime_start
                    _act_on(message)
        run.stdout += result.stdout
        run.stderr += result.stderr
        return run

    def _explained(self, death: Death, stderr: str) -> Death:
        """Add what only the log and the kernel know: XLA's fatal message, and lost memory."""
        reason = post_mortem.fatal_line(stderr)
        if post_mortem.out_of_memory_text(stderr):
            reason = f"out of memory: {reason}" if reason else "out of memory"
        elif death.kind == Kind.CRASHED and out_of_threads_text(stderr):
            reason = f"{out_of_threads()}: {reason}" if reason else out_of_threads()
        if death.signal == "SIGKILL" and self._oom_kills.happened():
            reason = "out of memory: killed by the kernel at the cgroup's limit"
        return replace(death, message=f"{death.message}: {reason}") if reason else death

    def _report(self, message: PhaseReported) -> pytest.TestReport:
        config = self._session.config
        report = config.hook.pytest_report_from_serializable(config=config, data=message.report)
        assert isinstance(report, pytest.TestReport)
        if isinstance(report.longrepr, list):  # a skip's place and reason, a tuple before JSON
            report.longrepr = tuple(report.longrepr)
        return report

    def _warn(self, message: Warned) -> None:
        name, text = message.category, message.text
        category = getattr(builtins, name, UserWarning)
        if category.__name__ != name:  # one that perhaps only the child knows
            text = f"{name}: {text}"
        warning = warnings.WarningMessage(
            category(text), category, message.filename, message.lineno
        )
        self._session.config.hook.pytest_warning_recorded.call_historic(
            kwargs={
                "warning_message": warning,
                "when": message.when,
                "nodeid": message.nodeid,
                "location": None,
            }
        )


def captured(report: pytest.TestReport, stdout: str, stderr: str) -> list[tuple[str, str]]:
    """Return the output of the phase that a report is about, as sections of the report."""
    named = (("stdout", stdout), ("stderr", stderr))
    return [(f"Captured {name} {report.when}", text) for name, text in named if text]


def _act_on(done: ItemDone) -> None:
    """End the run if the test has asked for that."""
    if done.interrupted:
        raise KeyboardInterrupt
    if done.exit_reason is not None:
        pytest.exit(done.exit_reason, exit_code(done.exit_code))


def exit_code(code: int | None) -> int:
    """Return the exit code of a run that a case ends, for the one that the case asks for.

    The cases after it have not run, so it must be none with which a whole run ends.
    """
    return pytest.ExitCode.INTERRUPTED if code in (None, 0, 1, 5) else code


def _private_bytes() -> int:
    """Return this process's private writable memory, which RLIMIT_DATA counts."""
    status = Path("/proc/self/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmData:"))
    return int(line.split()[1]) * 1024


def _child_main(
    isolator: Isolator, case: Case, setup: Setup, file: ForeignFile | None, ends: Endpoints
) -> NoReturn:
    reporter: pytest_child.Reporter
    isolator.leave()

    def prepare() -> None:
        nonlocal reporter
        isolator._lanes[case.target.lane].prepare(case.target.topology)
        reporter = pytest_child.prepare(isolator._session)
        # A shared process is forked under the first case's own filters, which end with that case.
        warnings.resetwarnings()
        warnings.filters[:] = isolator._warning_filters  # type: ignore[index]

    def serve(command: Message, tell: Tell) -> None:
        match command:
            case RunItem():
                pytest_child.run(isolator._session, reporter, command, tell)
            case ListTests() if file is not None:
                pytest_child.collect(file, tell)

    run_child(ends, setup, prepare, serve)
