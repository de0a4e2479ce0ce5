"""pytest inside a forked child: runs one item and sends the report of each phase at once."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.config import create_terminal_writer
from _pytest.faulthandler import fault_handler_stderr_fd_key

from harness.isolation.child import ForkedCopyError, Tell
from harness.isolation.foreign import ForeignFile, ForeignItem, describe, import_items, materialize
from harness.isolation.shutdown import shut_down
from harness.messages.case_messages import (
    ItemDone,
    NotListed,
    PhaseReported,
    RunItem,
    TestsListed,
    Warned,
)
from harness.messages.typed import Message

if TYPE_CHECKING:
    import warnings

_PARENTS_HOOKS = (
    "pytest_runtest_logstart",
    "pytest_runtest_logreport",
    "pytest_runtest_logfinish",
    "pytest_warning_recorded",
)
DECLARED = "xla_declared"  # of a failed report: whether the case's expectation declares it
USED = pytest.StashKey[list[str]]()  # records of what the case's process has used
RUNTIME_START = pytest.StashKey[dict[str, float]]()  # seconds, by the phase that they were spent in


class Reporter:
    """Sends what a case reports up the pipe; registered in the child only."""

    def __init__(self, session: pytest.Session) -> None:
        self._session, self._config, self._pid = session, session.config, os.getpid()
        self._waiting: list[pytest.TestReport] = []
        # To a new plugin pytest repeats the warnings of before the fork; the parent has had them.
        self.tell: Tell = _ignore

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if os.getpid() != self._pid:
            sys.stderr.write(f"{report.longreprtext}\n" if report.failed else "")
            raise ForkedCopyError(int(report.failed))
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self.tell(PhaseReported(data))
        self._count(report)

    def _count(self, report: pytest.TestReport) -> None:
        """Count the failures that nothing declares, by which -x and --maxfail end the run.

        The session then tears down wider fixtures here. Where a failure is expected, the test goes
        on past a subtest that fails, since all of them decide whether it failed as declared.
        """
        self._waiting.append(report)
        if not is_phase(report) and any(hasattr(each, DECLARED) for each in self._waiting):
            return
        for each in self._waiting:
            if not getattr(each, DECLARED, False):
                self._session.pytest_runtest_logreport(each)
        self._waiting.clear()

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # when all fixtures have ended
    def pytest_runtest_teardown(self, nextitem: pytest.Item | None) -> Generator[None]:
        try:
            return (yield)
        finally:
            if nextitem is None and os.getpid() == self._pid:  # the last test of this process
                shut_down()

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str
    ) -> None:
        self.tell(
            Warned(
                category=warning_message.category.__name__,
                text=str(warning_message.message),
                filename=warning_message.filename,
                lineno=warning_message.lineno,
                when=when,
                nodeid=nodeid,
            )
        )


def current_phase() -> str:
    """Return the phase of the test that runs here now: setup, call or teardown."""
    # pytest's documented "ID (PHASE)"; a test may have cleared the environment.
    return os.environ.get("PYTEST_CURRENT_TEST", "(call)").rpartition("(")[2].removesuffix(")")


def is_phase(report: pytest.TestReport) -> bool:
    """Return whether the report ends a phase; a subtest's report does not."""
    return type(report) is pytest.TestReport


def _ignore(message: Message) -> None:
    del message


def prepare(session: pytest.Session) -> Reporter:
    """Detach the forked pytest session from the parent's terminal, capture and plugins."""
    manager = session.config.pluginmanager
    session.config.option.capture = "no"  # for subtests, which would capture by themselves
    if session.config.option.tbstyle == "auto":
        # Long tracebacks print arguments, and printing a lazy tensor executes its program.
        session.config.option.tbstyle = "short"
    capture = manager.getplugin("capturemanager")
    if capture is not None:
        # pytest's capture would keep output where nobody finds it after a crash. Stopping it
        # restores the descriptors it had saved, so the child's own are put back behind it.
        streams = sys.stdout, sys.stderr
        loggers = _handlers_of(capture._global_capturing.out, capture._global_capturing.err)
        _without_moving_descriptors(capture.stop_global_capturing)
        sys.stdout, sys.stderr = streams
        for handlers, stream in zip(loggers, streams, strict=True):
            for handler in handlers:
                handler.stream = stream  # setStream would flush what is closed
        capture._method = "no"
        capture.start_global_capturing()
    _leave_to_the_parent(session)
    _detach(session.config)
    reporter = Reporter(session)
    manager.register(reporter)
    return reporter


def _handlers_of(*captures: Any) -> list[list[logging.StreamHandler[Any]]]:
    """Return the handlers of ``logging`` that write to each of pytest's captures.

    Modules that the parent has imported made them, of the sys.stderr that they saw.
    """
    handlers = [reference() for reference in logging._handlerList]  # type: ignore[attr-defined]
    files = [getattr(capture, "tmpfile", None) for capture in captures]
    return [
        [each for each in handlers if file and getattr(each, "stream", None) is file]
        for file in files
    ]


def _leave_to_the_parent(session: pytest.Session) -> None:
    """Disable the plugins' reporting hooks here: the parent calls them with what it receives."""
    config = session.config
    for name in _PARENTS_HOOKS:
        hook = getattr(config.hook, name)
        for implementation in hook.get_hookimpls():
            hook._remove_plugin(implementation.plugin)
    terminal = config.pluginmanager.getplugin("terminalreporter")
    if terminal is not None:
        terminal._tw = create_terminal_writer(config, Path(os.devnull).open("w"))  # noqa: SIM115


def _detach(config: pytest.Config) -> None:
    """Let no stray write reach the session's terminal, or pytest-xdist's controller.

    pytest and execnet keep duplicates of the first three descriptors. A number that is closed could
    be given out again and written to by its first owner, so each becomes the null device.
    """
    kept = [config.stash.get(fault_handler_stderr_fd_key, -1)]
    worker = _of_xdist(config)
    if worker is not None:
        pipes = worker.channel.gateway._io
        ends = (getattr(pipes, name, None) for name in ("infile", "outfile"))  # popen's
        kept += [end.fileno() for end in ends if end is not None]
    files = {_file(descriptor) for descriptor in kept} - {None}
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if descriptor > 2 and descriptor != null and _file(descriptor) in files:
            os.dup2(null, descriptor, inheritable=False)
    os.close(null)


def _of_xdist(config: pytest.Config) -> Any:
    """pytest-xdist's side of a worker, which it registers without a name; None elsewhere."""
    if not hasattr(config, "workerinput"):
        return None
    plugins = config.pluginmanager.get_plugins()
    return next((p for p in plugins if type(p).__name__ == "WorkerInteractor"), None)


def _file(descriptor: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _without_moving_descriptors(action: Callable[[], None]) -> None:
    saved = [os.dup(descriptor) for descriptor in (0, 1, 2)]
    action()
    for target, source in enumerate(saved):
        os.dup2(source, target)
        os.close(source)


def collect(file: ForeignFile, tell: Tell) -> None:
    """Import ``file`` and tell which tests it has, or why that can't be known."""
    try:
        tests = describe(import_items(file))
        tell(TestsListed(tests, file.isolator.loaded_packages()))
    except (pytest.Collector.CollectError, pytest.skip.Exception) as error:
        tell(NotListed(str(error), skipped=isinstance(error, pytest.skip.Exception)))


def run(session: pytest.Session, reporter: Reporter, command: RunItem, tell: Tell) -> None:
    """Run one item of the session.

    ``pytest.exit`` and Ctrl-C in a test are told to the supervisor, which acts on them.
    """
    reporter.tell = tell
    item = session.items[command.index]
    following = None if command.following is None else session.items[command.following]
    if isinstance(item, ForeignItem):
        item = materialize(item)
    interrupted, stop = False, None
    try:
        # The whole hook, since other plugins wrap it: warnings, fault handlers, tracebacks.
        item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
    except pytest.exit.Exception as request:
        stop = request
    except KeyboardInterrupt:
        interrupted = True
    tell(
        ItemDone(
            runtime_start=item.stash.get(RUNTIME_START, {}),
            interrupted=interrupted,
            exit_reason=stop.msg if stop else None,
            exit_code=stop.returncode if stop else None,
            used=item.stash.get(USED, []),
        )
    )
