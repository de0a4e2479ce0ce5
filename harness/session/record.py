"""Record of a case, which its reports carry to the terminal, to pytest-xdist and to JUnit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest

from harness.diagnosis.cause import Cause, signature_of
from harness.diagnosis.layers import layer_of
from harness.diagnosis.signature import headline, with_name_joined
from harness.expectations import Expectation, judge
from harness.isolation.item_result import ItemResult
from harness.isolation.pytest_child import is_phase
from harness.junit.properties import EXPECTED_BY_ENTRY, EXPECTED_BY_PYTEST
from harness.lanes import LANES
from harness.lanes.unseen import unseen_error
from harness.messages.typed import Message, Vocabulary, as_data
from harness.model.case import Case
from harness.model.outcome import ACTUAL, DECLARABLE, WORKS, Kind, Outcome
from harness.model.provenance import modified_property
from harness.model.versions import stack_versions
from harness.session import reports, subtests

_ATTRIBUTE = "xla_record"
_OWN_PHASES: tuple[Literal["setup", "call"], ...] = ("setup", "call")
# torch_xla up to 2.7 writes one in the middle of a message: what went wrong stands behind it.
_NATIVE_TRACE = re.compile(
    r"\*\*\* Begin stack trace \*\*\*.*?\*\*\* End stack trace \*\*\*\s*", re.DOTALL
)
_MOST_OF_A_FAILURE = 2000  # characters: enough for every signature, little for a report


@dataclass(frozen=True)
class Record(Message):
    """The facts of one case that ran. Durations in seconds."""

    id: str
    area: str
    lane: str
    topology: str
    framework: str  # of a case that several are asked
    isolation: str
    deadline: float
    upstream: str  # issues, separated by spaces
    expectation: str  # the cause it names, or ""
    expected: str  # the outcome that the expectation declares, or ""
    expected_by: str  # who expected a failure: expectation, pytest (a marker of its own), or ""
    actual: str  # the outcome, whatever was expected
    outcome: str  # what follows from the two
    outcome_detail: str
    failure: str  # the message of what went wrong, expected or not
    layer: str  # where it went wrong, one of harness.diagnosis.layers
    signature: str  # of the failure; with the layer it is the cause (harness.diagnosis.cause)
    signal: str
    not_executed: str  # of a pass that executed nothing on a lane that counts: what it did; or ""
    unproven: str  # why its pass says nothing about the lane, and so is none; or ""
    duration_setup: float
    duration_runtime_start: float | None
    duration_body: float
    duration_isolation: float
    facts: dict[str, str]  # what the lane measured

    @property
    def kind(self) -> Kind:
        """The outcome as its enumeration."""
        return Kind(self.outcome)

    @property
    def cause(self) -> Cause:
        """Cause for which the case is bad; for an unexpected pass, the entry that can go."""
        return Cause(self.layer, self.signature or signature_of(self.id, self.outcome_detail))

    @property
    def headline(self) -> str:
        """Line that says what went wrong; for an unexpected pass, which entry can go."""
        return headline(self.failure or self.outcome_detail)

    def properties(self) -> list[tuple[str, str]]:
        """Flat JUnit properties, the stack's versions included; empty ones are left out."""
        own = {
            name: f"{value:.6f}" if isinstance(value, float) else value
            for name, value in vars(self).items()
            if name != "facts"
        }
        stack = {**stack_versions(), **modified_property()}
        return [(k, v) for k, v in {**own, **self.facts, **stack}.items() if v]


_RECORDS = Vocabulary(Record)


def settle(
    item: pytest.Item, case: Case, run: ItemResult, expectation: Expectation | None, isolation: str
) -> list[pytest.TestReport]:
    """Return the reports to log for ``run``: judged, closed with a teardown, with the record."""
    if run.death is not None:
        run.reports.append(reports.of_death(item, run, run.death))
    if not reports.has_result(run.reports):
        run.reports.append(reports.without_result(item))
    subtests.absorb(item, run.reports)
    raw = reports.outcome_of(run.reports, run.death)
    raw, unproven = _with_evidence(item, case, run, raw)
    raw = _with_cause(item, run, raw)
    raw = replace(raw, layer=layer_of(raw, run.reports))
    outcome = judge(raw, expectation)
    other = None
    if outcome.kind == Kind.EXPECTED_FAILURE:
        other = _first_undeclared(run.reports, expectation)
    if other is not None:
        raw = reports.outcome_of([other], None)
        raw = outcome = replace(raw, layer=layer_of(raw, [other]))
    _rewrite(item, run.reports, raw, outcome, expectation)
    subtests.conclude(run.reports)
    known = sum(report.duration for report in run.reports)
    if run.death is not None:
        run.reports[-1].duration = max(run.wall - known, 0.0)
    if run.reports[-1].when != "teardown":
        run.reports.append(reports.passed_teardown(item, run.reports))
    record = _record(case, run, raw, outcome, expectation)
    record = replace(record, isolation=isolation, unproven=unproven)
    last = run.reports[-1]
    for report in run.reports:
        _join_name(report)
        setattr(report, _ATTRIBUTE, as_data(record) if report is last else None)
        if report is last or report.failed:  # JUnit gets a second test case for a second failure
            report.user_properties.extend(record.properties())
    return run.reports


def _join_name(report: pytest.TestReport) -> None:
    """Put what NumPy's assertions say behind the exception's name: pytest shows one line of it."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        crash.message = with_name_joined(crash.message)


def _not_executed(kind: Kind, facts: Mapping[str, str]) -> str:
    """Return what a pass did instead of an execution on a lane that counts them, or ""."""
    if kind not in WORKS or facts.get("executions") != "0":
        return ""
    compiled = int(facts["compilations"])
    if compiled:
        return f"compiled {compiled} program{'s' * (compiled > 1)} for the lane"
    if facts["clients"] != "0":
        return "only created a client of the lane"
    return "did nothing on the lane; its process has a client of it"


def _with_evidence(
    item: pytest.Item, case: Case, run: ItemResult, raw: Outcome
) -> tuple[Outcome, str]:
    """Return the outcome, and why a pass says nothing about the lane, and so is none; or ""."""
    unseen = ""
    if raw.kind in (Kind.PASSED, Kind.SKIPPED):
        unseen = unseen_error(run.events, run.began)
    if unseen:
        return reports.unseen(item, run.reports, raw, unseen), ""
    if raw.kind not in WORKS:
        return raw, ""
    if run.events.damage:  # what is missing may be the one event that says what went wrong
        message = f"the log of its events is damaged: {run.events.damage}"
        return reports.unproven(item, run.reports, Kind.FAILED, message), ""
    unproven = LANES[case.target.lane].unproven(run.process, run.events)
    if not unproven:
        return raw, ""
    # A case that declares its lanes is about them. Any other test is only asked to run there, and
    # many are about something else.
    kind = Kind.FAILED if case.declared else Kind.SKIPPED
    message = f"no evidence: {unproven}"
    return reports.unproven(item, run.reports, kind, message), unproven


def _with_cause(item: pytest.Item, run: ItemResult, raw: Outcome) -> Outcome:
    """Return the outcome, with what the lane recorded that led to it."""
    if hung := run.events.hung:
        return reports.hung_in_discovery(item, run.reports, hung.stack or "")
    if raw.kind == Kind.FAILED and (fault := run.events.kernel_fault):
        return replace(raw, message=f"{fault}: {raw.message}")
    return raw


def is_ours(report: pytest.TestReport) -> bool:
    """Return whether the report is a phase of a case."""
    return hasattr(report, _ATTRIBUTE)


def record_of(report: pytest.TestReport) -> Record | None:
    """Return the record that a case's last report carries, also after pytest-xdist's transport.

    A report whose record can't be read becomes a failed one, without a record.
    """
    data: Any = getattr(report, _ATTRIBUTE, None)
    if data is None:
        return None
    try:
        record = _RECORDS.read(data)
        assert isinstance(record, Record)
        Kind(record.outcome)
        ACTUAL.index(Kind(record.actual))
    except ValueError as error:
        setattr(report, _ATTRIBUTE, None)
        report.outcome = "failed"
        report.user_properties = [p for p in report.user_properties if p[0] != "outcome"]
        report.longrepr = f"malformed record from pytest-xdist's worker: {error}"
        return None
    return record


def _rewrite(
    item: pytest.Item,
    phases: list[pytest.TestReport],
    raw: Outcome,
    outcome: Outcome,
    expectation: Expectation | None,
) -> None:
    """Show in pytest's own terms what the expectation made of the outcome."""
    if outcome.kind == Kind.UNEXPECTED_PASS and raw.xfail is None:
        *_, call = (report for report in phases if report.when == "call")  # after its subtests
        call.outcome = "failed"
        call.longrepr = reports.longrepr(
            item, f"unexpected pass: {outcome.message}", f"unexpected pass: {outcome.message}\n"
        )
        return
    failed = [report for report in phases if report.failed and raw.kind != Kind.SKIPPED]
    if outcome.kind == Kind.EXPECTED_FAILURE and raw.kind != outcome.kind:
        for report in failed:  # as declared, all fail alike
            _expect(report, outcome.message)
        return
    # Beside another failure, subtests that fail as declared are still expected to.
    for report in failed:
        if is_declared(report, expectation) and not is_phase(report):
            assert expectation is not None
            _expect(report, f"{expectation.cause}: {expectation.reason}")
    first = next((report for report in failed if report.failed), None)
    if first is not None and outcome.note:
        first.sections.append(("expectation", outcome.note))


def is_declared(report: pytest.TestReport, expectation: Expectation | None) -> bool:
    """Return whether the failed report is of the failure that the expectation declares."""
    return judge(reports.outcome_of([report], None), expectation).kind == Kind.EXPECTED_FAILURE


def _expect(report: pytest.TestReport, reason: str) -> None:
    report.outcome = "skipped"
    report.wasxfail = reason


def _first_undeclared(
    phases: list[pytest.TestReport], expectation: Expectation | None
) -> pytest.TestReport | None:
    """Return what fails besides the declared failure: in teardown, or a subtest."""
    failed = [report for report in phases if report.failed]
    return next((r for r in failed[1:] if is_phase(r) or not is_declared(r, expectation)), None)


def _expected_by(raw: Outcome, expectation: Expectation | None) -> str:
    if raw.xfail is not None:
        return EXPECTED_BY_PYTEST
    return EXPECTED_BY_ENTRY if expectation else ""


def _record(
    case: Case, run: ItemResult, raw: Outcome, outcome: Outcome, expectation: Expectation | None
) -> Record:
    """Return the record without what only the caller knows."""
    failed = raw.kind in DECLARABLE
    failure = _NATIVE_TRACE.sub("", raw.message)[:_MOST_OF_A_FAILURE] if failed else ""
    facts = {k: v for k, v in LANES[case.target.lane].facts(run.events).items() if v}
    durations = {report.when: report.duration for report in run.reports}
    starts = run.runtime_start
    own = {when: max(durations.get(when, 0.0) - starts.get(when, 0.0), 0.0) for when in _OWN_PHASES}
    return Record(
        id=case.id,
        area=case.area,
        lane=case.target.lane,
        topology=str(case.target.topology),
        framework=case.target.framework,
        isolation="",
        deadline=case.deadline,
        upstream=" ".join(case.upstream),
        expectation=expectation.cause if expectation else "",
        expected=str(expectation.outcome) if expectation else "",
        expected_by=_expected_by(raw, expectation),
        actual=str(raw.kind),
        outcome=str(outcome.kind),
        outcome_detail=outcome.detail,
        failure=failure,
        layer=raw.layer,
        signature=signature_of(case.id, failure) if failed else "",
        signal=raw.signal,
        not_executed=_not_executed(outcome.kind, facts),
        unproven="",
        duration_setup=own["setup"],
        duration_runtime_start=sum(starts.values()) if starts else None,
        duration_body=own["call"],
        duration_isolation=max(run.wall - sum(durations.values()), 0.0),
        facts=facts,
    )
