"""pytest's hooks around a test in the process that runs it."""

from __future__ import annotations

import unittest
from collections.abc import Generator

import pytest

from harness.isolation.pytest_child import DECLARED
from harness.junit.properties import of_a_test
from harness.lanes import LANES
from harness.session.fixtures import CASE, EXPECTATION
from harness.session.record import is_declared
from harness.session.reports import keep_layer

_HAS_SETTLED = pytest.StashKey[bool]()  # the test itself has not failed, nor what it has queued


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep what a test says of itself apart from what the harness says of it."""
    report = yield
    keep_layer(report, call)
    expectation = item.stash.get(EXPECTATION, None)
    if report.failed and expectation is not None:
        setattr(report, DECLARED, is_declared(report, expectation))
    report.user_properties = [(of_a_test(name), v) for name, v in report.user_properties]
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """End what the test has begun, if it has found no fault itself.

    What it has queued has to run before it has passed. A lane that compiles only does that, or
    compares with golden compilations.
    """
    case = item.stash.get(CASE, None)
    if case is None:
        return (yield)
    lane = LANES[case.target.lane]
    if not lane.compiles_only:
        try:
            yield
        except (pytest.skip.Exception, unittest.SkipTest):
            lane.settle()
            raise
        lane.settle()
        item.stash[_HAS_SETTLED] = True
        return None
    from harness.lanes.aot.case_compiler import CaseCompiler, compiling_what_is_submitted

    compiler = getattr(item, "funcargs", {}).get("xla_compiler")
    if not isinstance(compiler, CaseCompiler):
        with compiling_what_is_submitted(CaseCompiler(case, None)):
            return (yield)
    yield
    compiler.compare()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """Wait for what fixtures have queued, too."""
    yield
    if item.stash.get(_HAS_SETTLED, False):
        LANES[item.stash[CASE].target.lane].settle()
