"""The part of the pytest plugin that reuses results, and keeps those that can be reused."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from harness.errors import BadInputError
from harness.isolation.item_result import deserialized
from harness.isolation.pytest_child import USED
from harness.junit.properties import (
    HOST_CALLS,
    REUSED,
    REUSED_WRONGLY,
    STACK_VARIABLE,
    when_measured,
)
from harness.lanes import LANES
from harness.model.outcome import Kind
from harness.printable import printable
from harness.reuse.dependencies import Dependencies
from harness.reuse.recorder import UNTRACKED, FileRecorder
from harness.reuse.result_store import ResultStore
from harness.session.fixtures import CASE
from harness.session.record import Record, record_of

_ATTRIBUTE = "xla_reuse"  # of a case's last report, for the summary of another process
_CASES = "cases"  # kind of stored objects
_SHOWN = 5
_MOST_SECONDS = 10.0  # that checks take in one run, unless each case is checked
# What a case did, whatever was expected of it: a crash or a hang is measured each time.
_REUSABLE = frozenset({Kind.PASSED, Kind.FAILED})


def plugins(
    config: pytest.Config, in_process: str, environment: Mapping[str, str]
) -> list[CaseReuse | ReuseSummary]:
    """Return the plugins that ``--reuse`` asks for; raises BadInputError naming the option."""
    if not config.getoption("reuse"):
        return []
    if in_process:
        raise BadInputError(f"--reuse: expected a process for each case, not {in_process}")
    every = config.getoption("reuse_check")
    if not (every.isdecimal() and int(every)):
        raise BadInputError(f"--reuse-check {every}: expected a number above 0")
    is_worker = hasattr(config, "workerinput")
    runs_cases = is_worker or config.getoption("dist", "no") == "no"
    return [
        *([CaseReuse(config, environment)] if runs_cases else []),
        *([] if is_worker else [ReuseSummary(config)]),
    ]


class CaseReuse:
    """Reuses and keeps results in a process that runs cases."""

    def __init__(self, config: pytest.Config, environment: Mapping[str, str]) -> None:
        self._config = config
        self._pid = os.getpid()
        self._store = ResultStore(Path(config.getoption("reuse")))
        self._dependencies = Dependencies(config, environment, self._store)
        self._recorder = FileRecorder()
        self._every = int(config.getoption("reuse_check"))
        self._seed = config.getoption("reuse_seed")
        self._run = when_measured(datetime.now(UTC), environment.get(STACK_VARIABLE, ""))
        self._item: pytest.Item | None = None  # that runs now
        self._key = ""  # of it in the store
        self._reports: list[dict[str, Any]] = []  # of it
        self._stored: dict[str, Any] | None = None  # its record, if nothing has changed
        self._change = ""
        self._checked: frozenset[str] | None = None  # ids, known once the cases are selected
        os.register_at_fork(after_in_child=self._record_child)

    def pytest_collection(self) -> None:
        self._recorder.start()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self) -> None:
        self._dependencies.collected(self._recorder.stop())

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """Log the stored reports of an item of which nothing has changed, or let it run."""
        if CASE not in item.stash or os.getpid() != self._pid:
            return None
        self._item, self._reports, self._change = item, [], ""
        self._key = self._dependencies.key(item)
        self._stored = self._store.read(_CASES, self._key)
        if self._stored is not None and (change := self._dependencies.change(self._stored)):
            self._stored, self._change = None, change
        if self._checked is None:
            self._checked = self._chosen_to_check(item.session.items)
        if self._stored is None or item.nodeid in self._checked:
            return None
        self._item = None
        hook = item.ihook
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in (deserialized(self._config, data) for data in self._stored["reports"]):
            if record_of(report) is not None:
                report.user_properties.append((REUSED, self._stored["run"]))
                self._note(report, reused=self._stored["run"])
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None]:
        """Send what the case's process has used."""
        try:
            return (yield)
        finally:
            if os.getpid() != self._pid:
                item.stash[USED] = self._recorder.used()

    @pytest.hookimpl(tryfirst=True)  # before it is written to JUnit or sent to the controller
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._item is None:
            return
        serialize = self._config.hook.pytest_report_to_serializable
        self._reports.append(serialize(config=self._config, report=report))
        record = record_of(report)
        if record is None:
            return
        item, self._item = self._item, None
        checked, difference = self._stored is not None, ""
        if self._stored is not None:
            difference = _difference(self._recorded(self._stored), record)
        if difference:
            report.user_properties.append((REUSED_WRONGLY, difference))
        refusal = self._keep(item, record)
        self._note(
            report, checked=checked, difference=difference, change=self._change, refusal=refusal
        )

    def _keep(self, item: pytest.Item, record: Record) -> str:
        """Keep the result that has just been measured; return why not if it can't be reused."""
        used = item.stash.get(USED, [])
        names = (name for report in self._reports for name, _ in report["user_properties"])
        if refusal := _refusal(record, used, names):
            self._store.remove(_CASES, self._key)
            return refusal
        data = self._dependencies.record(item, used)
        self._store.write(_CASES, self._key, {**data, "run": self._run, "reports": self._reports})
        return ""

    def _recorded(self, stored: Mapping[str, Any]) -> Record | None:
        reports = (deserialized(self._config, data) for data in stored["reports"])
        return next((record for report in reports if (record := record_of(report))), None)

    def _chosen_to_check(self, items: Iterable[pytest.Item]) -> frozenset[str]:
        """Return the ids of one in so many of the cases, by seed, that take only so long."""
        numbered = ((self._number(item), item) for item in items if CASE in item.stash)
        chosen = sorted(
            (pair for pair in numbered if pair[0] % self._every == 0), key=itemgetter(0)
        )
        if self._every == 1:
            return frozenset(item.nodeid for _, item in chosen)
        left, checked = _MOST_SECONDS, set[str]()
        for _, item in chosen:
            if left <= 0:
                break
            if (stored := self._store.read(_CASES, self._dependencies.key(item))) is not None:
                left -= sum(report["duration"] for report in stored["reports"])
                checked.add(item.nodeid)
        return frozenset(checked)

    def _number(self, item: pytest.Item) -> int:
        digest = hashlib.sha256(f"{self._seed} {item.nodeid}".encode()).digest()
        return int.from_bytes(digest[:8], "big")

    def _note(self, report: pytest.TestReport, **notes: object) -> None:
        store = {"damaged": self._store.damaged, "unwritten": self._store.unwritten}
        setattr(report, _ATTRIBUTE, {**notes, **store})
        self._store.damaged = 0

    def _record_child(self) -> None:
        """Record a case's process from its start; the processes that it forks append to that."""
        if os.getppid() == self._pid:
            self._recorder.start()


class ReuseSummary:
    """Counts what was reused, where there is a terminal, and bounds the store."""

    def __init__(self, config: pytest.Config) -> None:
        self._folder = Path(config.getoption("reuse"))
        self._seed = config.getoption("reuse_seed")
        self._runs: list[str] = []  # that measured what was reused
        self._differences: dict[str, str] = {}
        self._changes: Counter[str] = Counter()
        self._refusals: Counter[str] = Counter()
        self._cases = self._checked = self._damaged = 0
        self._unwritten = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        notes: dict[str, Any] = getattr(report, _ATTRIBUTE, {})
        self._cases += bool(notes)
        self._checked += notes.get("checked", False)
        self._damaged += notes.get("damaged", 0)
        self._unwritten = notes.get("unwritten", "") or self._unwritten
        if run := notes.get("reused"):
            self._runs.append(run)
        if change := notes.get("change"):
            self._changes[change] += 1
        if refusal := notes.get("refusal"):
            self._refusals[refusal] += 1
        if difference := notes.get("difference"):
            self._differences[report.nodeid] = difference

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        ResultStore(self._folder).prune()
        if self._differences and session.exitstatus == 0:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        write = terminalreporter.write_line
        if self._runs:
            oldest = min(self._runs)
            write(f"{len(self._runs)} of {self._cases} results reused, the oldest of {oldest}")
        for change, count in self._changes.most_common(_SHOWN):
            write(printable(f"{count} ran again: {change} changed"))
        for refusal, count in self._refusals.most_common(_SHOWN):
            write(printable(f"{count} are measured each time: {refusal}"))
        if self._checked and not self._differences:
            write(f"{self._checked} ran again to check the reuse (seed {self._seed}), and agree")
        for case, difference in self._differences.items():
            write(printable(f"xla-harness: reuse was wrong: {case}: {difference}"), red=True)
            write("  it is flaky, or depends on what is not tracked: docs/reuse.md", red=True)
        if self._damaged:
            write(f"xla-harness: {self._damaged} damaged results were removed from {self._folder}")
        if self._unwritten:
            write(f"xla-harness: results can't be kept: {self._unwritten}", red=True)


def _refusal(record: Record, used: Sequence[str], names: Iterable[str]) -> str:
    """Return why the result is measured each time; "" for one that can be reused."""
    if LANES[record.lane].runs_cases_of:
        return f"devices of lane {record.lane} are not tracked"
    if record.kind not in (Kind.PASSED, Kind.EXPECTED_FAILURE):
        return str(record.kind)
    if Kind(record.actual) not in _REUSABLE:
        return record.actual
    if any(name.startswith(HOST_CALLS) for name in {*record.facts, *names}):
        return "it counts host work"
    if not used:
        return "its process did not record what it used"
    others = (line.removeprefix(UNTRACKED) for line in used if line.startswith(UNTRACKED))
    return next(others, "").strip()


def _difference(stored: Record | None, record: Record) -> str:
    """Describe how a case's result differs from the one that would have been reused; or ""."""
    if stored is None:
        return "its record has no result"
    for name in ("outcome", "actual", "layer", "signature"):
        before, now = getattr(stored, name), getattr(record, name)
        if before != now:
            return f"{name} was {before or 'none'}, and is {now or 'none'}"
    return ""
