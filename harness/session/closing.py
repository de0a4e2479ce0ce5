"""Close a session when its cases have run: write report, golden compilations and exit code."""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import Any

import pytest
from _pytest.junitxml import LogXML, xml_key

from harness.errors import BadInputError
from harness.junit.properties import (
    FORMAT,
    FORMAT_PROPERTY,
    LEFT_OUT,
    STACK_PROPERTY,
    STACK_VARIABLE,
    of_a_session,
)
from harness.lanes.aot.compilation_record import PROPERTY, Summary
from harness.model.outcome import Kind
from harness.model.provenance import modified_property
from harness.model.versions import stack_versions
from harness.model.wheel_checksums import wheels_property
from harness.session.collection import COLLECTED
from harness.session.options import Settings
from harness.session.record import is_ours, record_of
from harness.session.refusal import refuse

_OUTPUT_KEY = "xla_harness"


class Closing:
    """Counts what ran, and closes the session with it."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self._golden = settings.golden if settings.update_golden else None
        self._collected = config.stash[COLLECTED]
        self._compiled: dict[tuple[str, str, str, str], list[Summary]] = {}
        self._cases = self._measured = 0
        self._plain = 0  # tests that are no cases, and were not skipped

    @pytest.hookimpl(tryfirst=True)  # it may change the report for all who come after it
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        record = record_of(report)
        if record is None:
            self._plain += report.when == "call" and not is_ours(report) and not report.skipped
            return
        self._cases += 1
        self._measured += record.kind != Kind.SKIPPED
        compiled = record.facts.get(PROPERTY) if record.kind == Kind.PASSED else None
        if self._golden is not None and compiled:
            self._compiled[record.area, record.id, record.framework, record.lane] = json.loads(
                compiled
            )

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[_OUTPUT_KEY] = {
                "left_out": dict(self._collected.left_out),
                "unmatched": self._collected.unmatched,
            }
            return
        if self._compiled and self._golden is not None:
            try:
                self._golden.update(self._compiled)
            except BadInputError as error:
                refuse(session, str(error))
        junit = session.config.stash.get(xml_key, None)
        if junit is not None:
            _describe_run(junit, self._collected.left_out)
        if self._collected.unmatched and session.exitstatus in (0, 5):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        measured = self._measured or self._plain
        if self._cases and not measured and session.exitstatus == 0:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED  # none that says anything

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        match getattr(node, "workeroutput", {}).get(_OUTPUT_KEY):
            # Every worker collects the same, so the last result is enough.
            case {"left_out": dict(left_out), "unmatched": list(unmatched)}:
                self._collected.left_out = Counter(left_out)
                self._collected.unmatched = unmatched


def _describe_run(junit: LogXML, left_out: Counter[str]) -> None:
    """Add the properties of the whole run to the report that pytest writes."""
    properties = junit.global_properties
    properties[:] = [(of_a_session(name), value) for name, value in properties]
    own = {FORMAT_PROPERTY: FORMAT, STACK_PROPERTY: os.environ.get(STACK_VARIABLE, "")}
    stack = {**stack_versions(), **modified_property(), **wheels_property()}
    causes = {f"{LEFT_OUT}{cause}": str(count) for cause, count in sorted(left_out.items())}
    for name, value in {**own, **stack, **causes}.items():
        junit.add_global_property(name, value)
