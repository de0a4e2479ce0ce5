"""Terminal output: a line of progress while cases run, and a summary that says what to do."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from _pytest.terminal import TerminalReporter

from harness.diagnosis import layers
from harness.diagnosis.cause import Cause
from harness.diagnosis.signature import headline
from harness.isolation.pytest_child import is_phase
from harness.model.chosen_plugin import chosen_plugin
from harness.model.outcome import Kind
from harness.model.provenance import modified_components
from harness.printable import printable
from harness.session import summary
from harness.session.collection import COLLECTED
from harness.session.fixtures import CASE
from harness.session.progress import Progress
from harness.session.record import Record, is_ours, record_of
from harness.session.refusal import UNWRITTEN
from harness.session.tracebacks import Tracebacks
from harness.verdicts import upstream


class Terminal:
    """Registered where there is a terminal: in plain pytest and in pytest-xdist's controller."""

    def __init__(
        self, config: pytest.Config, in_process: str, rows: Sequence[upstream.Row]
    ) -> None:
        self._config = config
        self._in_process = in_process
        self._rows = rows
        self._records: list[Record] = []
        self._announced: set[Cause] = set()
        self._has_cases = False  # until then the progress is pytest's
        self._line = Progress()

    def attach(self, reporter: TerminalReporter) -> None:
        """Write through ``reporter`` from now on."""
        self._reporter = reporter
        self._line.attach(reporter)
        if not self._full:
            self._config.pluginmanager.register(Tracebacks(reporter, self._records))

    def pytest_report_header(self) -> list[str]:
        lines = [f"xla-harness: {printable(str(component))}" for component in modified_components()]
        if plugin := chosen_plugin():
            lines.append(f"xla-harness: {plugin.headline}")
        if self._in_process:
            lines.append(
                f"xla-harness: no isolation ({self._in_process}): cases share this process"
            )
        return lines

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._line.total = len(session.items)
        self._has_cases = any(CASE in item.stash for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self._line.total = len(ids)

    def pytest_runtestloop(self) -> None:
        self._line.start_clock()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        if self._quiet:
            self._line.begin()

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(
        self, report: pytest.TestReport | pytest.CollectReport
    ) -> tuple[str, str, str] | None:
        if not isinstance(report, pytest.TestReport):  # of a file that can't be imported
            return None
        if not self._has_cases and is_ours(report):  # pytest-xdist's controller collects nothing
            self._has_cases = True
            if self._quiet:
                self._line.begin()
        if not self._quiet:
            return None
        if not is_phase(report) and not report.failed:
            return "", "", ""  # the test's own report says what its subtests come to
        # pytest's categories and words, without the letter that it would print at once.
        if hasattr(report, "wasxfail"):
            return ("xfailed", "", "XFAIL") if report.skipped else ("xpassed", "", "XPASS")
        if report.when == "call" or report.skipped:
            return report.outcome, "", report.outcome.upper()
        return ("error", "", "ERROR") if report.failed else ("", "", "")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not is_ours(report):
            if self._line.add_plain(report) is Kind.FAILED and self._quiet:
                self._line.announce(f"failed: {report.nodeid}", headline(layers.message_of(report)))
        elif (record := record_of(report)) is not None:
            self._records.append(record)
            self._line.add(record.kind)
            if self._quiet:
                self._announce(record)
        if self._quiet:
            self._line.show()

    def pytest_terminal_summary(self) -> None:
        collected = self._config.stash[COLLECTED]
        summary_lines = summary.lines(
            self._records, self._rows, collected, self._width, full=self._full
        )
        for line, style in summary_lines:
            self._reporter.write_line(printable(line), **style)
        for line in self._config.stash.get(UNWRITTEN, []):
            self._reporter.write_line(printable(f"xla-harness: {line}"), red=True)

    @property
    def _full(self) -> bool:
        """Return whether to show every failure, and not only one of each cause."""
        return bool(self._config.getoption("full")) or self._reporter.verbosity > 1

    @property
    def _width(self) -> int:
        """The terminal's columns; 80 where there is none."""
        return self._reporter._tw.fullwidth

    @property
    def _quiet(self) -> bool:
        return self._reporter.verbosity == 0 and self._has_cases

    def _announce(self, record: Record) -> None:
        """Name the first case of each cause at once; the line of progress counts them all."""
        if not record.kind.is_bad or record.cause in self._announced:
            return
        self._announced.add(record.cause)
        self._line.announce(f"{record.kind}: {record.id}", record.headline)
