"""Decide whether this process imports a test file, or only the processes that it forks."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from harness import frameworks
from harness.errors import BadInputError
from harness.frameworks import FRAMEWORKS
from harness.isolation.foreign import ForeignFile
from harness.isolation.garbage import importing
from harness.isolation.threads import NotForkableError, refuse_started_runtimes
from harness.lanes import lane_named
from harness.model.case import Case
from harness.model.fit import unfit_here, unlaunched
from harness.session.options import Settings
from harness.session.refusal import stop
from harness.session.running import Running

# Modules that come with a framework.
_BROUGHT = {"jaxlib": "jax", "torch": "torch_xla"}


class Imports:
    """Imports files of cases here, and leaves any other to forked processes."""

    def __init__(self, settings: Settings, running: Running) -> None:
        self._settings = settings
        self._running = running
        self.unlaunched = ""  # why a file's launcher can't start the job

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> Generator[None, object, object]:
        # With --lane every test is forked; without, only a case is, and is refused then.
        if self._settings.lanes and not self._running.in_child:
            try:
                refuse_started_runtimes()
                if not session.config.option.collectonly:
                    for lane in map(lane_named, self._settings.lanes):
                        for topology in self._settings.topologies or (lane.default_topology,):
                            self._settings.check_named_platforms(lane, topology)
            except (BadInputError, NotForkableError) as error:
                stop(session, str(error))
            if unfit := unfit_here():
                stop(session, unfit)
        if not self._settings.lanes and self._settings.expectations is None:
            return (yield)  # nobody asks for cases here
        with importing():  # test modules import frameworks
            return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makemodule(
        self, module_path: Path, parent: pytest.Collector
    ) -> ForeignFile | None:
        """Have a file without cases of ours imported by forked processes only."""
        isolator = self._running.isolator
        if isolator is None or self._running.in_child or len(self._settings.lanes) != 1:
            return None
        program = module_path.read_text(errors="replace")
        if "mark.lanes(" in program:
            return None
        try:
            target = self._settings.plain_target()
        except BadInputError:  # reported for its tests, as for any other
            return None
        assert target is not None
        if why := unlaunched(program, target.topology):
            self.unlaunched = f"{module_path.name}: topology {target.topology}: {why}"
        file = ForeignFile.from_parent(parent, path=module_path)
        file.case = Case(file.nodeid, target, deadline=self._settings.deadline)
        file.isolator = isolator
        return file

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Skip a file of cases whose framework this environment does not have."""
        report = yield
        why = _without_framework(collector, report)
        if why:
            report.outcome = "skipped"
            report.longrepr = (str(collector.path), 1, f"Skipped: {why}")
        return report


def _without_framework(collector: pytest.Collector, report: pytest.CollectReport) -> str:
    """Name the missing framework that a file of cases imports; "" if it failed for another reason.

    A failing import in anyone else's test is that test's result.
    """
    if not report.failed or not isinstance(collector, pytest.Module):
        return ""
    if "mark.lanes(" not in collector.path.read_text(errors="replace"):
        return ""
    error: BaseException | None = report.call.excinfo and report.call.excinfo.value
    while error is not None and not isinstance(error, ModuleNotFoundError):
        error = error.__cause__
    name = (error.name or "").partition(".")[0] if error else ""
    name = _BROUGHT.get(name, name)
    return frameworks.missing(name) if name in FRAMEWORKS else ""
