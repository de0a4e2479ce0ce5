"""The section FAILURES: one traceback for each cause, and the names of the cases that share it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager

import pytest
from _pytest.reports import BaseReport
from _pytest.terminal import TerminalReporter

from harness.printable import printable
from harness.session.record import Record, is_ours

_LISTS = ("error", "failed")


class Tracebacks:
    """The plugin that folds them, registered where there is a terminal."""

    def __init__(self, reporter: TerminalReporter, records: Sequence[Record]) -> None:
        """Remember the run's ``records``, which grow as results come in."""
        self._reporter = reporter
        self._records = records

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # around pytest's, which prints the tracebacks
    def pytest_terminal_summary(self) -> Generator[None, None, None]:
        with folded(self._reporter, self._records):
            return (yield)


@contextmanager
def folded(reporter: TerminalReporter, records: Sequence[Record]) -> Iterator[None]:
    """While this is open, ``reporter`` prints a traceback for each cause and names the others.

    Tests that are not cases, and cases with several failures, are printed as ever. Only what the
    terminal shows changes: JUnit is written from the reports themselves, and the counts at the end
    are of all reports.
    """
    kept = {name: reporter.stats[name] for name in _LISTS if name in reporter.stats}
    alike = _alike(kept, records)
    named = {id(report) for reports in alike.values() for report in reports}
    print_report = reporter._outrep_summary

    def with_names(report: BaseReport) -> None:
        print_report(report)
        others = alike.get(id(report), [])
        if others:
            reporter.write_sep("-", f"{len(others)} more with this cause")
        for other in others:
            reporter.write_line(printable(other.nodeid))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reporter, "_outrep_summary", with_names)
        for name, reports in kept.items():
            patch.setitem(reporter.stats, name, [r for r in reports if id(r) not in named])
        yield


def _alike(
    lists: Mapping[str, Sequence[BaseReport]], records: Sequence[Record]
) -> dict[int, list[BaseReport]]:
    """Map the ``id()`` of each report whose traceback is printed to those that are only named."""
    keys = {record.id: record.cause for record in records}
    failures = Counter(report.nodeid for reports in lists.values() for report in reports)
    first: dict[tuple[object, ...], BaseReport] = {}
    by_representative: dict[int, list[BaseReport]] = {}
    for name, reports in lists.items():
        for report in reports:
            key = keys.get(report.nodeid)
            if not isinstance(report, pytest.TestReport) or not is_ours(report):
                continue
            if key is None or failures[report.nodeid] > 1:
                continue
            representative = first.setdefault((name, *key), report)
            if representative is not report:
                by_representative.setdefault(id(representative), []).append(report)
    return by_representative
