"""Runs pytest items in forked processes: one for each, or one for several that share it."""

from __future__ import annotations

import faulthandler
import os
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest

from harness.errors import BadInputError
from harness.isolation import libc, pytest_child
from harness.isolation.case_environment import LaneSetup, full_environment
from harness.isolation.case_files import CaseFiles
from harness.isolation.child import Endpoints, Setup, Tell, run_child
from harness.isolation.foreign import ForeignFile, FoundTest, found
from harness.isolation.item_result import ItemResult, explained, interpreted
from harness.isolation.post_mortem import KernelOomKills
from harness.isolation.preload import Preload, loaded, preload
from harness.isolation.supervisor import GRACE, CaseProcess
from harness.isolation.threads import ForkGuard, NotForkableError
from harness.isolation.watchdog import Watchdog
from harness.messages.case_messages import (
    ListTests,
    NotListed,
    RunItem,
    TestsListed,
)
from harness.messages.typed import Message
from harness.model.case import Case
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
        preloads: Sequence[Preload],
        lanes: Mapping[str, LaneSetup],
    ) -> None:
        self._session = session
        self._limits = limits
        self._preloads = preloads  # that are not imported yet
        self._loaded: set[str] = set()  # packages that some test file's import has loaded
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
        run = interpreted(self._session.config, result, self._oom_kills)
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
            death = explained(result.death, result.stderr, self._oom_kills)
            stacks = f"{death.python_stack}\n{death.native_stack}"
            raise file.CollectError(f"{death.kind} in its import: {death.message}\n{stacks}")
        match result.phases[-1].message:
            case TestsListed(tests, loaded=names):
                self._loaded.update(names)
                return found(tests)
            case NotListed(reason, skipped=True):
                pytest.skip(reason, allow_module_level=True)
            case NotListed(reason):
                raise file.CollectError(reason)
            case other:
                raise AssertionError(other)

    def loaded_packages(self) -> list[str]:
        """Return which packages of what is not imported yet this process has loaded."""
        return loaded(name for each in self._preloads for name in each.packages)

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

    def _preload(self, paths: Iterable[Path]) -> None:
        """Import what the tests of these files use, and what this process has of it.

        torch_xla takes ten times as long as JAX, and many projects use only one of them.
        """
        programs = [_program(path) for path in paths] if self._preloads else []
        names = self._loaded.union(self.loaded_packages())
        used = [each for each in self._preloads if each.is_used_by(programs, names)]
        self._preloads = [each for each in self._preloads if each not in used]
        preload([module for each in used for module in each.modules])

    def _fork(self, case: Case, file: ForeignFile | None = None) -> CaseProcess:
        if file is not None:
            self._preload([file.path])
        elif not self._index:  # the first of the tests, of which all are known now
            self._preload({item.path for item in self._session.items})
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


def _program(path: Path) -> str:
    """Return a test file's text; "" for what is none."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


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
