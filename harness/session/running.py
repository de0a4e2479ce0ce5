"""Runs each case through the isolator, or without isolation in this process."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from harness.errors import BadInputError
from harness.isolation.foreign import MainBlock
from harness.isolation.isolator import Isolator
from harness.isolation.item_result import ItemResult
from harness.isolation.pytest_child import USED
from harness.isolation.threads import NotForkableError
from harness.job import job
from harness.lanes import LANES
from harness.model.case import Case
from harness.session.fixtures import CASE, EXPECTATION, GOLDEN
from harness.session.in_process import InProcess
from harness.session.options import Settings
from harness.session.record import settle
from harness.session.refusal import stop

if TYPE_CHECKING:
    from harness.job.rendezvous import Meetings


# Why no case can run on this system, or "": a process that has ended is known by a descriptor, and
# a log that nobody can cut is a file in memory.
CASES_NEED = "" if hasattr(os, "pidfd_open") else f"cases need Linux, and this is {sys.platform}"


class Running:
    """Runs the cases of a session."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self._settings = settings
        self._pid = os.getpid()
        self._in_process = InProcess(config, settings.in_process)
        self._meetings: Meetings | None = None
        self.isolator: Isolator | None = None
        # In a case's own process, too: what is to be rewritten is not compared.
        config.stash[GOLDEN] = None if settings.update_golden else settings.golden

    @property
    def in_child(self) -> bool:
        """Return whether this is a case's own process."""
        return os.getpid() != self._pid

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        # Before any test module is imported: what is started later can't be forked.
        if not self._settings.in_process and not CASES_NEED:
            limits, preloads = self._settings.limits, self._settings.preload
            try:
                self.isolator = Isolator(session, limits, preloads, LANES)
            except OSError as error:  # no folder for temporary files
                stop(session, f"{error.filename}: can't be made: {error.strerror}")
        elif len(self._settings.lanes) == 1:
            session.config.pluginmanager.register(MainBlock())

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        worker = job.current()
        if worker is not None and not self.in_child:
            from harness.job.rendezvous import Meetings

            cases = [item.nodeid for item in session.items if CASE in item.stash]
            self._meetings = Meetings(worker, cases)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> bool | None:
        case = item.stash.get(CASE, None)
        if case is None or self.in_child:  # in a case's own process pytest runs it
            return None
        hook = item.ihook
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._reports(item, case, nextitem):
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        if self.isolator is not None:
            self.isolator.finish()
        self._in_process.finish()

    def _reports(
        self, item: pytest.Item, case: Case, nextitem: pytest.Item | None
    ) -> list[pytest.TestReport]:
        isolation = "none" if self.isolator is None else "fork"
        try:
            result = self._run(item, case, nextitem)
        except (BadInputError, NotForkableError) as error:
            stop(item.session, f"{item.nodeid}: {error}")
            return []
        item.stash[USED] = result.used
        return settle(item, case, result, item.stash[EXPECTATION], isolation)

    def _run(self, item: pytest.Item, case: Case, nextitem: pytest.Item | None) -> ItemResult:
        absent = self._meetings and self._meetings.before(item.nodeid, case.deadline)
        if absent:  # another worker of the job did not come to this case
            if self.isolator is not None:
                self.isolator.close(grace=0)  # a process that it would have shared
            return ItemResult(death=absent)
        if self.isolator is None:
            return self._in_process.run(item, case, nextitem)
        if failed := _tear_down_plain_fixtures(item):
            return ItemResult(reports=[failed])
        next_case = nextitem.stash.get(CASE, None) if nextitem else None
        following = (nextitem, next_case) if nextitem and next_case else None
        return self.isolator.run(item, case, following)


def _tear_down_plain_fixtures(item: pytest.Item) -> pytest.TestReport | None:
    """End what plain tests before ``item`` have set up; return the report if that fails.

    A case's process would inherit the fixtures, and end them a second time.
    """
    state = item.session._setupstate
    if not state.stack:
        return None
    call = pytest.CallInfo.from_call(lambda: state.teardown_exact(None), when="setup")
    report: pytest.TestReport = item.ihook.pytest_runtest_makereport(item=item, call=call)
    return report if report.failed else None
