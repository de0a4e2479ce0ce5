"""The line of progress: how many tests are done, what became of them, and how long it took."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from _pytest.terminal import TerminalReporter

from harness.isolation.pytest_child import is_phase
from harness.model.outcome import Kind
from harness.printable import printable
from harness.session.progress_file import ProgressFile

_WORDS = ("passed", "failed", "crashed", "hung", "conflict", "skipped", "expected", "xpass")
_SHORT_WORDS = ("ok", "fail", "crash", "hung", "confl", "skip", "exp", "xpass")
_REDRAW_SECONDS = 0.1
_LINE_SECONDS = 20.0


class Progress:
    """Progress of cases and plain tests: a line, redrawn on a terminal and repeated in a log."""

    def __init__(self) -> None:
        self.total = 0
        self._percent = 0
        self._counts: Counter[Kind] = Counter()
        self._file = ProgressFile()
        self._running: dict[str, Kind] = {}  # plain tests before their teardown
        self._begun = False
        self._start = self._drawn = time.monotonic()

    def attach(self, reporter: TerminalReporter) -> None:
        """Write through ``reporter``."""
        self._reporter = reporter
        self._live = bool(reporter.isatty)

    def start_clock(self) -> None:
        """Count the time from now on."""
        self._start = time.monotonic()

    def begin(self) -> None:
        """Take the place of pytest's letters and percentages, which this line would cut."""
        if self._begun:
            return
        self._begun = True
        self._reporter.showfspath = False
        self._reporter._show_progress_info = False
        if self._reporter._tw.width_of_current_line:
            self._reporter._tw.line()
        self._reporter.currentfspath = None

    def add(self, kind: Kind) -> None:
        """Count a case, or a plain test that has ended."""
        self._counts[kind] += 1
        self._file.write(self._counts.total(), self.total)

    def add_plain(self, report: pytest.TestReport) -> Kind | None:
        """Count a plain test with its last report; return its outcome if this report decides it."""
        if not is_phase(report):
            return None  # the test's own report says what its subtests come to
        kind = _kind_of(report)
        if kind is not None:
            self._running[report.nodeid] = kind
        if report.when not in ("setup", "call"):
            self.add(self._running.pop(report.nodeid, Kind.PASSED))
        return kind

    def announce(self, title: str, message: str) -> None:
        """Write two lines about a failure, above the line of progress."""
        if self._live:  # over the line of progress
            self._reporter.rewrite(printable(title), erase=True, red=True)
            title = ""
        self._reporter.write_line(printable(title), red=True)
        width = self._reporter._tw.fullwidth
        self._reporter.write_line(printable(f"  {message}"[:width]))

    def show(self) -> None:
        """Draw the line if it is time to."""
        now, done = time.monotonic(), self._counts.total()
        percent = 100 * done // max(self.total, done, 1)
        seconds = int(now - self._start)
        if self._live:
            due = now - self._drawn >= _REDRAW_SECONDS or done == self.total
        else:
            due = percent // 10 > self._percent // 10 or now - self._drawn >= _LINE_SECONDS
        if not due:
            return
        self._drawn, self._percent = now, percent
        clock = f"{seconds // 60}:{seconds % 60:02}"
        head = f"[{done:>{len(str(self.total))}}/{self.total} {percent:3}% {clock}]"
        text = f"{head}  {_in_words(self._counts, _WORDS, '  ')}"
        if len(text) >= self._reporter._tw.fullwidth:
            text = f"{head} {_in_words(self._counts, _SHORT_WORDS, ' ')}"
        if self._live:
            self._reporter.rewrite(text, erase=True)
        else:
            self._reporter.write_line(text)


def _kind_of(report: pytest.TestReport) -> Kind | None:
    """Return the outcome of a plain test if the report decides it, as a passed setup does not."""
    if hasattr(report, "wasxfail"):
        return Kind.EXPECTED_FAILURE if report.skipped else Kind.UNEXPECTED_PASS
    if report.failed:
        return Kind.FAILED
    if report.skipped:
        return Kind.SKIPPED
    return Kind.PASSED if report.when == "call" else None


def _in_words(counts: Mapping[Kind, int], words: Sequence[str], separator: str) -> str:
    named = zip(Kind, words, strict=True)
    return separator.join(f"{counts[kind]} {word}" for kind, word in named if counts[kind])
