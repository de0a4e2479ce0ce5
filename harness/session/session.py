"""A pytest session with cases in it: which run, where, and what becomes of each."""

from __future__ import annotations

import json
import os
import time
import unittest
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.junitxml import xml_key
from _pytest.runner import runtestprotocol

from harness import frameworks
from harness.errors import BadInputError
from harness.expectations import Expectation, Expectations
from harness.frameworks import FRAMEWORKS
from harness.isolation import subtests
from harness.isolation.case_files import CaseFiles
from harness.isolation.child import set_environment
from harness.isolation.environment import full_environment
from harness.isolation.evidence import Death
from harness.isolation.foreign import ForeignFile, MainBlock
from harness.isolation.garbage import importing
from harness.isolation.isolator import Isolator, ItemResult, exit_code
from harness.isolation.pytest_child import RUNTIME_START
from harness.isolation.reports import keep_layer, of_death
from harness.isolation.threads import NotForkableError, refuse_started_runtimes
from harness.job import job
from harness.junit.names import (
    FORMAT,
    FORMAT_PROPERTY,
    LEFT_OUT,
    STACK_PROPERTY,
    STACK_VARIABLE,
    of_a_session,
    of_a_test,
)
from harness.lanes import LANES, lane_named
from harness.lanes.aot.compilation_record import PROPERTY, Summary
from harness.lanes.hardware import machine
from harness.model.case import Case
from harness.model.fit import unfit_here, unlaunched
from harness.model.outcome import Kind
from harness.model.provenance import modified_property
from harness.model.topology import Target
from harness.model.versions import stack_versions
from harness.model.wheels import wheels_property
from harness.scratch import Scratch
from harness.session.fixtures import CASE, GOLDEN
from harness.session.markers import case_of, declared_targets
from harness.session.options import Settings
from harness.session.record import is_declared, is_ours, record_of, settle
from harness.session.selection import Shard, shards
from harness.session.written import refuse

if TYPE_CHECKING:
    from harness.job.rendezvous import Meetings

_OUTPUT_KEY = "xla_harness"


@dataclass
class Collected:
    """What collection found out; a pytest-xdist worker sends it to the controller."""

    left_out: Counter[str] = field(default_factory=Counter)
    unmatched: list[str] = field(default_factory=list)


_EXPECTATION = pytest.StashKey[Expectation | None]()
_HAS_SETTLED = pytest.StashKey[bool]()  # the test itself has not failed, nor what it has queued
COLLECTED = pytest.StashKey[Collected]()


class Cases:
    """Turns items with a target into cases, and runs each through the isolator."""

    def __init__(
        self, config: pytest.Config, settings: Settings, expectations: Expectations
    ) -> None:
        self._config = config
        self._settings = settings
        self._expectations = expectations
        self._isolator: Isolator | None = None
        self._in_process: Target | None = None
        self._unlaunched = ""  # why a file's launcher can't start the job
        # Without isolation all cases are in this process, and what one created, others may use.
        self._scratch: Scratch | None = None
        self._files: CaseFiles | None = None
        self._meetings: Meetings | None = None
        self._pid = os.getpid()
        self._collected = config.stash.setdefault(COLLECTED, Collected())
        self._compiled: dict[tuple[str, str, str], list[Summary]] = {}
        self._cases = self._measured = 0
        self._plain = 0  # tests that are no cases, and were not skipped
        # In a case's own process, too: what is to be rewritten is not compared.
        config.stash[GOLDEN] = None if settings.update_golden else settings.golden

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        # Before any test module is imported: what is started later can't be forked.
        if not self._settings.in_process:
            limits, modules = self._settings.limits, self._settings.preload
            try:
                self._isolator = Isolator(session, limits, modules, LANES)
            except OSError as error:  # no folder for temporary files
                self._stop(session, f"{error.filename}: can't be made: {error.strerror}")
        elif len(self._settings.lanes) == 1:
            session.config.pluginmanager.register(MainBlock())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> Generator[None, object, object]:
        # With --lane every test is forked; without, only a case is, and is refused then.
        if self._settings.lanes and os.getpid() == self._pid:
            try:
                refuse_started_runtimes()
                if not session.config.option.collectonly:
                    for lane in map(lane_named, self._settings.lanes):
                        self._settings.check_named_platforms(lane, lane.default_topology)
            except (BadInputError, NotForkableError) as error:
                self._stop(session, str(error))
            if unfit := unfit_here():
                self._stop(session, unfit)
        if not self._settings.lanes and self._settings.expectations is None:
            return (yield)  # nobody asks for cases here
        with importing():  # test modules import frameworks
            return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makemodule(
        self, module_path: Path, parent: pytest.Collector
    ) -> ForeignFile | None:
        """A file without cases of ours is imported by forked processes only."""
        if self._isolator is None or os.getpid() != self._pid or len(self._settings.lanes) != 1:
            return None
        program = module_path.read_text(errors="replace")
        if "mark.lanes(" in program:
            return None
        try:
            target = self._settings.plain_target()
        except BadInputError:  # said of its tests, like of any other
            return None
        assert target is not None
        if why := unlaunched(program, target.topology):
            self._unlaunched = f"{module_path.name}: topology {target.topology}: {why}"
        file = ForeignFile.from_parent(parent, path=module_path)
        file.case = Case(file.nodeid, target, deadline=self._settings.deadline)
        file.isolator = self._isolator
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

    @pytest.hookimpl(tryfirst=True)  # so that lane and topology come first in the id
    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        try:
            targets = declared_targets(metafunc.definition)
        except BadInputError as error:
            raise pytest.Collector.CollectError(str(error)) from None
        if targets:
            metafunc.fixturenames.append("xla_target")
            metafunc.parametrize("xla_target", targets, ids=str, indirect=True, scope="function")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(
        self, session: pytest.Session, items: list[pytest.Item]
    ) -> Generator[None, None, None]:
        self._collected.unmatched = self._unmatched_expectations(items)
        yield
        # After -k, -m and the like, so that only what they left is counted as left out.
        try:
            self._choose(items)
            runs = () if session.config.option.collectonly else items
            for target in {item.stash[CASE].target for item in runs if CASE in item.stash}:
                self._settings.check_named_platforms(LANES[target.lane], target.topology)
        except BadInputError as error:
            items.clear()
            self._stop(session, str(error))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        own = job.current()
        if own is not None and os.getpid() == self._pid:
            from harness.job.rendezvous import Meetings

            self._meetings = Meetings(own, [i.nodeid for i in session.items if CASE in i.stash])

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> bool | None:
        case = item.stash.get(CASE, None)
        if case is None or os.getpid() != self._pid:  # in a case's own process pytest runs it
            return None
        hook = item.ihook
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._run(item, case, nextitem):
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Keep what a test says of itself apart from what the harness says of it."""
        report = yield
        keep_layer(report, call)
        expectation = item.stash.get(_EXPECTATION, None)
        if report.failed and expectation is not None:
            setattr(report, subtests.DECLARED, is_declared(report, expectation))
        report.user_properties = [(of_a_test(name), v) for name, v in report.user_properties]
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None]:
        """End what the test has begun, if it has found no fault itself.

        What it has queued has to run before it has passed. A lane that compiles only does that, or
        compares with golden compilations.
        """
        case = item.stash.get(CASE, None)
        if case is None:
            return (yield)
        if not LANES[case.target.lane].compiles_only:
            try:
                yield
            except (pytest.skip.Exception, unittest.SkipTest):
                LANES[case.target.lane].settle()
                raise
            LANES[case.target.lane].settle()
            item.stash[_HAS_SETTLED] = True
            return None
        from harness.lanes.aot.tpu_compiler import TpuCompiler, compiling_what_is_submitted

        compiler = getattr(item, "funcargs", {}).get("tpu_compiler")
        if not isinstance(compiler, TpuCompiler):
            with compiling_what_is_submitted(TpuCompiler(case, None)):
                return (yield)
        yield
        compiler.compare()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None]:
        """Wait for what fixtures have queued, too."""
        yield
        if item.stash.get(_HAS_SETTLED, False):
            LANES[item.stash[CASE].target.lane].settle()

    @pytest.hookimpl(tryfirst=True)  # it may change the report for all who come after it
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        record = record_of(report)
        if record is None:
            self._plain += report.when == "call" and not is_ours(report) and not report.skipped
            return
        self._cases += 1
        self._measured += record.kind != Kind.SKIPPED
        compiled = record.facts.get(PROPERTY) if record.kind == Kind.PASSED else None
        if self._settings.update_golden and compiled:
            self._compiled[record.area, record.id, record.framework] = json.loads(compiled)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._isolator is not None:
            self._isolator.finish()
        if self._scratch is not None:
            self._scratch.close()
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput[_OUTPUT_KEY] = {
                "left_out": dict(self._collected.left_out),
                "unmatched": self._collected.unmatched,
            }
            return
        if self._compiled and self._settings.golden is not None:
            try:
                self._settings.golden.update(self._compiled)
            except BadInputError as error:
                refuse(session, str(error))
        junit = self._config.stash.get(xml_key, None)
        if junit is not None:
            own = {FORMAT_PROPERTY: FORMAT, STACK_PROPERTY: os.environ.get(STACK_VARIABLE, "")}
            causes = sorted(self._collected.left_out.items())
            left_out = {f"{LEFT_OUT}{cause}": str(count) for cause, count in causes}
            said = junit.global_properties
            said[:] = [(of_a_session(name), value) for name, value in said]
            stack = {**stack_versions(), **modified_property(), **wheels_property()}
            for name, value in {**own, **stack, **left_out}.items():
                junit.add_global_property(name, value)
        if self._collected.unmatched and session.exitstatus in (0, 5):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        measured = self._measured or self._plain
        if self._cases and not measured and session.exitstatus == 0:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED  # none that says anything

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        match getattr(node, "workeroutput", {}).get(_OUTPUT_KEY):
            # Every worker collects the same, so the last one's word is enough.
            case {"left_out": dict(left_out), "unmatched": list(unmatched)}:
                self._collected.left_out = Counter(left_out)
                self._collected.unmatched = unmatched

    def _unmatched_expectations(self, items: list[pytest.Item]) -> list[str]:
        selected = any("::" in argument for argument in self._config.args)
        selected = selected or self._settings.cases is not None
        if selected or self._config.getoption("lf", False):
            return []  # part of a file was collected: what is missing says nothing
        return self._expectations.unmatched((item.nodeid for item in items), self._config.rootpath)

    def _choose(self, items: list[pytest.Item]) -> None:
        chosen, left_out = [], []
        for item in items:
            if item.nodeid in self._settings.unless_cases or (
                self._settings.cases is not None and item.nodeid not in self._settings.cases
            ):
                left_out.append(item)
                continue
            target, declared = self._target_of(item), declared_targets(item)
            reason = target and (
                self._settings.why_not(target, declared)
                if declared
                else self._settings.why_not_plain()
            )
            if reason:
                self._collected.left_out[reason] += 1
                left_out.append(item)
                continue
            if target is not None:
                target = self._settings.place(target) if declared else target
                item.stash[CASE] = case_of(item, target, self._settings.deadline)
                self._skip_elsewhere(item, target)
                item.stash[_EXPECTATION] = self._expectations.find(item.nodeid)
            chosen.append(item)
        if any(CASE in item.stash for item in chosen) and (unfit := unfit_here()):
            raise BadInputError(unfit)
        if self._unlaunched:
            raise BadInputError(self._unlaunched)
        if self._settings.shard is not None:
            mine = self._shard(chosen, self._settings.shard)
            left_out += [item for item in chosen if item.nodeid not in mine]
            chosen = [item for item in chosen if item.nodeid in mine]
        if left_out:
            self._config.hook.pytest_deselected(items=left_out)
            items[:] = chosen
        if self._settings.topologies and chosen and not any(CASE in item.stash for item in chosen):
            raise BadInputError(
                f"--topology {self._config.getoption('topology')}: no test uses it: tests without "
                "a lanes marker run on a lane of xla-harness only with --lane"
            )

    def _skip_elsewhere(self, item: pytest.Item, target: Target) -> None:
        """On real hardware the topology is what it is."""
        if self._settings.hardware is None:
            return
        reason = machine.why_not(target.topology, self._settings.hardware)
        if item.get_closest_marker("emulated"):
            reason = "about the virtual TPU itself"
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason), append=False)

    def _shard(self, items: list[pytest.Item], shard: Shard) -> dict[str, float]:
        cases = [
            (item.nodeid, item.stash[CASE].target.lane if CASE in item.stash else "")
            for item in items
        ]
        parts = shards(cases, self._settings.durations, shard.count)
        others = len(cases) - len(parts[shard.number - 1])
        self._collected.left_out[f"other shards than {shard}"] += others
        return parts[shard.number - 1]

    def _target_of(self, item: pytest.Item) -> Target | None:
        callspec = getattr(item, "callspec", None)
        if callspec is not None and "xla_target" in callspec.params:
            target = callspec.params["xla_target"]
            assert isinstance(target, Target)
            return target
        declared = declared_targets(item)  # unittest's methods can't be parametrized
        if not declared:
            return self._settings.plain_target()
        why_not = {target: self._settings.why_not(target, declared) for target in declared}
        chosen = next((target for target in declared if not why_not[target]), declared[0])
        for other in declared:
            if other != chosen:
                reason = why_not[other] or f"unittest, one target: run {other} alone"
                self._collected.left_out[reason] += 1
        return chosen

    def _run(
        self, item: pytest.Item, case: Case, nextitem: pytest.Item | None
    ) -> list[pytest.TestReport]:
        isolation = "none" if self._isolator is None else "fork"
        try:
            run = self._ran(item, case, nextitem)
        except (BadInputError, NotForkableError) as error:
            self._stop(item.session, f"{item.nodeid}: {error}")
            return []
        return settle(item, case, run, item.stash[_EXPECTATION], isolation)

    def _ran(self, item: pytest.Item, case: Case, nextitem: pytest.Item | None) -> ItemResult:
        absent = self._meetings and self._meetings.before(item.nodeid, case.deadline)
        if absent:
            return self._not_run(item, absent)
        if self._isolator is None:
            return self._run_here(item, case, nextitem)
        if failed := _tear_down_plain_fixtures(item):
            return ItemResult(reports=[failed])
        next_case = nextitem.stash.get(CASE, None) if nextitem else None
        following = (nextitem, next_case) if nextitem and next_case else None
        return self._isolator.run(item, case, following)

    def _not_run(self, item: pytest.Item, absent: Death) -> ItemResult:
        """A case that another worker of the job did not come to."""
        if self._isolator is not None:
            self._isolator.close(grace=0)  # a process that it would have shared
        return ItemResult(reports=[of_death(item, absent, [])], death=absent)

    def _stop(self, session: pytest.Session, message: str) -> None:
        """End the run with exit code 2 and ``message``."""
        message = f"xla-harness: {message}"
        if not hasattr(self._config, "workeroutput"):
            pytest.exit(message, returncode=2)
        session.shouldstop = message  # pytest-xdist's controller says it and ends with 2

    def _run_here(self, item: pytest.Item, case: Case, nextitem: pytest.Item | None) -> ItemResult:
        """Without isolation only one target can be had: a started runtime can't be undone."""
        if self._in_process not in (None, case.target):
            reason = f"this process runs {self._in_process}: run alone, or without"
            item.add_marker(pytest.mark.skip(reason=f"{reason} {self._settings.in_process}"))
        else:
            if self._in_process is None:
                refuse_started_runtimes()
            self._in_process = case.target
        start = time.monotonic()
        if self._files is None:
            self._scratch = Scratch()
            self._files = CaseFiles.create(self._scratch)
        log = self._files.log
        before = log.read()
        with _environment(case, self._files):
            LANES[case.target.lane].preload()
            LANES[case.target.lane].prepare(case.target.topology)
            with subtests.held_back(self._config) as parts:
                try:
                    reports = runtestprotocol(item, log=False, nextitem=nextitem)
                except pytest.exit.Exception as error:
                    error.returncode = exit_code(error.returncode)
                    raise
        process = log.read()
        return ItemResult(
            reports=subtests.between(reports, parts),
            events=process.after(before),
            process=process,
            runtime_start=item.stash.get(RUNTIME_START, {}),
            wall=time.monotonic() - start,
            began=start,
        )


# Modules that come with a framework.
_BROUGHT = {"jaxlib": "jax", "torch": "torch_xla"}


def _without_framework(collector: pytest.Collector, report: pytest.CollectReport) -> str:
    """Which framework a file of cases imports in vain; "" if that is not why it failed."""
    if not report.failed or not isinstance(collector, pytest.Module):
        return ""
    if "mark.lanes(" not in collector.path.read_text(errors="replace"):
        return ""  # of anyone else's test an import that fails is the answer
    error: BaseException | None = report.call.excinfo and report.call.excinfo.value
    while error is not None and not isinstance(error, ModuleNotFoundError):
        error = error.__cause__
    name = (error.name or "").partition(".")[0] if error else ""
    name = _BROUGHT.get(name, name)
    return frameworks.missing(name) if name in FRAMEWORKS else ""


def _tear_down_plain_fixtures(item: pytest.Item) -> pytest.TestReport | None:
    """End what plain tests before ``item`` have set up; the report if that fails.

    A case's process would inherit the fixtures, and end them a second time.
    """
    state = item.session._setupstate
    if not state.stack:
        return None
    call = pytest.CallInfo.from_call(lambda: state.teardown_exact(None), when="setup")
    report: pytest.TestReport = item.ihook.pytest_runtest_makereport(item=item, call=call)
    return report if report.failed else None


@contextmanager
def _environment(case: Case, own: CaseFiles) -> Iterator[None]:
    before = dict(os.environ)
    lane = LANES[case.target.lane]
    set_environment({**own.environment, **full_environment(case, lane)})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
