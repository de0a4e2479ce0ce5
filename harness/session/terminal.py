"""What a person sees: one line of progress while cases run, and a summary that says what to do."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

import pytest
from _pytest.terminal import TerminalReporter

from harness.isolation.reports import is_phase
from harness.model.outcome import Kind
from harness.model.provenance import modified_components
from harness.printable import printable
from harness.session import summary
from harness.session.causes import Key, key_of, message_of
from harness.session.fixtures import CASE
from harness.session.record import Record, is_ours, record_of
from harness.session.session import COLLECTED
from harness.session.tracebacks import Tracebacks
from harness.session.written import UNWRITTEN
from harness.verdicts import upstream

_WORDS = ("passed", "failed", "crashed", "hung", "conflict", "skipped", "expected", "xpass")
_SHORT_WORDS = ("ok", "fail", "crash", "hung", "confl", "skip", "exp", "xpass")
_REDRAW_SECONDS = 0.1
_LINE_SECONDS = 20.0


class Terminal:
    """Registered where there is a terminal: in plain pytest and in pytest-xdist's controller."""

    def __init__(
        self, config: pytest.Config, in_process: str, rows: Sequence[upstream.Row]
    ) -> None:
        self._config = config
        self._in_process = in_process
        self._rows = rows
        self._records: list[Record] = []
        self._announced: set[Key] = set()
        self._total = self._percent = 0
        self._mixed = False  # with plain tests in it, whose letters pytest prints
        self._start = self._drawn = time.monotonic()

    def attach(self, reporter: TerminalReporter) -> None:
        """Write through ``reporter`` from now on."""
        self._reporter = reporter
        self._live = bool(reporter.isatty)
        if not self._full:
            self._config.pluginmanager.register(Tracebacks(reporter, self._records))

    def pytest_report_header(self) -> list[str]:
        lines = [f"xla-harness: {printable(str(found))}" for found in modified_components()]
        if self._in_process:
            lines.append(
                f"xla-harness: no isolation ({self._in_process}): cases share this process"
            )
        return lines

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._total = sum(CASE in item.stash for item in session.items)
        self._mixed = self._total < len(session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self._total = len(ids)

    def pytest_runtestloop(self) -> None:
        self._start = time.monotonic()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        if self._quiet:
            # The file names and dots of pytest would be cut by the progress line.
            self._reporter.showfspath = False
            self._reporter._show_progress_info = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        self._mixed = self._mixed or not is_ours(report)
        if not self._quiet:
            return None
        if not is_phase(report) and not report.failed:
            return "", "", ""  # the test's own report says what its subtests come to
        # pytest's categories and words, without the letter that it would print at once.
        if hasattr(report, "wasxfail"):
            return ("xfailed", "", "XFAIL") if report.skipped else ("xpassed", "", "XPASS")
        if report.failed and report.when != "call":
            return "error", "", "ERROR"
        if report.when == "call" or report.skipped:
            return report.outcome, "", report.outcome.upper()
        return "", "", ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        record = record_of(report) if is_ours(report) else None
        if record is None:
            return
        self._records.append(record)
        if self._quiet:
            self._announce(record)
            self._progress()

    def pytest_terminal_summary(self) -> None:
        collected = self._config.stash[COLLECTED]
        found = summary.lines(self._records, self._rows, collected, self._width, full=self._full)
        for line, style in found:
            self._reporter.write_line(printable(line), **style)
        for line in self._config.stash.get(UNWRITTEN, []):
            self._reporter.write_line(printable(f"xla-harness: {line}"), red=True)

    @property
    def _full(self) -> bool:
        """Whether every failure is to be shown, and not one of each cause."""
        return bool(self._config.getoption("full")) or self._reporter.verbosity > 1

    @property
    def _width(self) -> int:
        """The terminal's columns; 80 where there is none."""
        return self._reporter._tw.fullwidth

    @property
    def _quiet(self) -> bool:
        return self._reporter.verbosity == 0 and not self._mixed

    def _announce(self, record: Record) -> None:
        """Name the first case of each cause at once; the line of progress counts them all."""
        if not record.kind.is_bad or key_of(record) in self._announced:
            return
        self._announced.add(key_of(record))
        title = printable(f"{record.kind}: {record.id}")
        if self._live:  # over the progress line
            self._reporter.rewrite(title, erase=True, red=True)
            title = ""
        self._reporter.write_line(title, red=True)
        self._reporter.write_line(printable(f"  {message_of(record)}"[: self._width]))

    def _progress(self) -> None:
        now, done = time.monotonic(), len(self._records)
        percent = 100 * done // max(self._total, done)
        clock = _clock(now - self._start)
        head = f"[{done:>{len(str(self._total))}}/{self._total} {percent:3}% {clock}]"
        text = f"{head}  {self._counts(_WORDS, '  ')}"
        if len(text) >= self._width:
            text = f"{head} {self._counts(_SHORT_WORDS, ' ')}"
        if self._live:
            if now - self._drawn >= _REDRAW_SECONDS or done == self._total:
                self._drawn = now
                self._reporter.rewrite(text, erase=True)
        elif percent // 10 > self._percent // 10 or now - self._drawn >= _LINE_SECONDS:
            self._drawn, self._percent = now, percent
            self._reporter.write_line(text)

    def _counts(self, words: Sequence[str], separator: str) -> str:
        counts = Counter(record.kind for record in self._records)
        named = zip(Kind, words, strict=True)
        return separator.join(f"{counts[kind]} {word}" for kind, word in named if counts[kind])


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
