"""Turn what a case's process left into pytest's reports, and reports into one outcome."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest
from _pytest._code.code import (
    ExceptionChainRepr,
    ReprEntryNative,
    ReprFileLocation,
    ReprTraceback,
)

from harness.diagnosis.layers import message_of
from harness.isolation.item_result import captured
from harness.isolation.post_mortem import out_of_memory_text, without_runner
from harness.isolation.pytest_child import is_phase
from harness.isolation.ranks import RankError
from harness.isolation.thread_limits import (
    out_of_processes_traceback,
    out_of_threads,
    out_of_threads_text,
)
from harness.model.mismatch import DiscoveryError, layer_of_mismatch
from harness.model.outcome import Kind, Outcome

if TYPE_CHECKING:
    from harness.isolation.item_result import ItemResult
    from harness.isolation.post_mortem import Death

_NEXT_PHASE = {"": "setup", "setup": "call", "call": "teardown", "teardown": "teardown"}
_STACK_LINES = 400
_LAYER = "xla_layer"  # an attribute of a failed report, which also leaves the case's process
_RANK_DIED = "xla_rank_died"  # one, too: its exception tells of a rank that a signal killed
_STRICT = "[XPASS(strict)] "  # how pytest's longrepr of a pass begins that a marker forbids


def longrepr(item: pytest.Item, message: str, text: str) -> ExceptionChainRepr:
    """Return a failure text with ``message`` as its one-line summary, in the shape that
    pytest-xdist and pytest's JUnit writer know.
    """
    file, line, _ = item.location
    entries = ReprTraceback([ReprEntryNative([text])], extraline=None, style="native")
    return ExceptionChainRepr([(entries, ReprFileLocation(file, (line or 0) + 1, message), None)])


def of_death(item: pytest.Item, run: ItemResult, death: Death) -> pytest.TestReport:
    """Return the failed report of the phase that a case died in."""
    parts = [f"{death.kind}: {death.message}"]
    for title, stack in (("Python", death.python_stack), ("Native", death.native_stack)):
        if stack:
            parts.append(f"{title} stack:\n{_first_lines(without_runner(stack))}")
    ended = [report.when or "" for report in filter(is_phase, run.reports)]
    text = longrepr(item, parts[0], "\n\n".join(parts) + "\n")
    report = _report(item, _NEXT_PHASE[ended[-1] if ended else ""], "failed", text)
    report.sections += [*run.sections, *captured(report, run.stdout, run.stderr)]
    return report


def keep_layer(report: pytest.TestReport, call: pytest.CallInfo[None]) -> None:
    """Have the report of a failed phase say what its exception carries: a layer, a rank's death."""
    if call.excinfo and isinstance(call.excinfo.value, RankError) and call.excinfo.value.died:
        setattr(report, _RANK_DIED, True)
    layer = layer_of_mismatch(call.excinfo.value) if call.excinfo and report.failed else ""
    if layer:
        setattr(report, _LAYER, layer)


def has_result(reports: Sequence[pytest.TestReport]) -> bool:
    """Return whether the reports say how the test itself ended, or why it was not run."""
    return any(report.when == "call" or not report.passed for report in reports)


def without_result(item: pytest.Item) -> pytest.TestReport:
    """Return a failed report for a test without any, for example because a plugin skipped it."""
    message = "no result was reported"
    return _report(item, "call", "failed", longrepr(item, message, f"{message}\n"))


def passed_teardown(item: pytest.Item, before: Sequence[pytest.TestReport]) -> pytest.TestReport:
    """Return a teardown for a case whose teardown never ran, with the output of all its phases."""
    report = _report(item, "teardown", "passed", None)
    report.sections += before[-1].sections
    return report


def outcome_of(reports: Sequence[pytest.TestReport], death: Death | None) -> Outcome:
    """Return the one actual outcome of all phases; the first failure counts."""
    if death is not None:
        return Outcome(death.kind, death.message, death.signal)
    for report in reports:
        if report.failed:
            return _failed(report)
    for report in filter(is_phase, reports):
        if hasattr(report, "wasxfail"):
            kind = Kind.FAILED if report.skipped else Kind.PASSED
            return Outcome(kind, xfail=report.wasxfail)
        if report.skipped:
            return Outcome(Kind.SKIPPED, skip_reason(report))
    return Outcome(Kind.PASSED)


def is_strict_pass(report: pytest.TestReport) -> bool:
    """Return whether the report failed only because a strict marker expected a failure."""
    text = report.longrepr
    return report.failed and isinstance(text, str) and text.startswith(_STRICT)


def _failed(report: pytest.TestReport) -> Outcome:
    message = message_of(report)
    if is_strict_pass(report):
        return Outcome(Kind.PASSED, xfail=message.removeprefix(_STRICT))
    if out_of_memory_text(message):
        message = f"out of memory: {message}"
    elif _says_out_of_threads(report, message):
        message = f"{out_of_threads()}: {message}"
    return Outcome(Kind.FAILED, message, layer=getattr(report, _LAYER, ""))


def _says_out_of_threads(report: pytest.TestReport, message: str) -> bool:
    """Return whether no thread or process could be started; a rank that died says it on stderr."""
    return (
        out_of_threads_text(message)
        or out_of_processes_traceback(message, report.longreprtext)
        or (hasattr(report, _RANK_DIED) and out_of_threads_text(report.capstderr))
    )


def hung_in_discovery(item: pytest.Item, before: list[pytest.TestReport], stack: str) -> Outcome:
    """Make a second discovery the one cause of all that came of it, and say who made it."""
    message = "hung in a second discovery"
    texts = [report.longreprtext for report in before if report.failed]
    text = "\n\n".join([f"{message}, made by:\n{stack}", *texts])
    phase = next((r for r in before if r.failed), before[-1] if before else None)
    when = phase.when if phase and phase.when else "call"
    report = _report(item, when, "failed", longrepr(item, message, text))
    if phase is not None:
        report.sections, report.duration = phase.sections, phase.duration
        before[before.index(phase)] = report
    else:
        before.append(report)
    return Outcome(Kind.HUNG, message, layer=DiscoveryError.layer)


def skip(item: pytest.Item, report: pytest.TestReport, reason: str) -> None:
    """Make the report that of a skipped test."""
    file, line, _ = item.location
    vars(report).pop("wasxfail", None)
    report.outcome, report.longrepr = "skipped", (file, (line or 0) + 1, f"Skipped: {reason}")


def unproven(
    item: pytest.Item, before: Sequence[pytest.TestReport], kind: Kind, message: str
) -> Outcome:
    """Make a pass that is no evidence the failure, or the skip, that it is instead."""
    *_, call = (report for report in before if report.when == "call")  # after its subtests
    if kind == Kind.FAILED:
        vars(call).pop("wasxfail", None)
        call.outcome, call.longrepr = "failed", longrepr(item, message, f"{message}\n")
    else:
        skip(item, call, message)
    return Outcome(kind, message)


def unseen(
    item: pytest.Item, before: Sequence[pytest.TestReport], raw: Outcome, text: str
) -> Outcome:
    """Make an error that the test was not given the outcome of a test that has not failed.

    A marker of pytest's own that expects a failure gets one.
    """
    *_, last = (report for report in before if report.when == "call" or not report.passed)
    if raw.xfail is not None:
        last.outcome, last.longrepr, last.wasxfail = "skipped", None, raw.xfail
        return Outcome(Kind.FAILED, xfail=raw.xfail)
    title = "an error that the test was not given"
    line = text.partition("\n")[0]
    last.outcome, last.longrepr = "failed", longrepr(item, line, f"{title}: {text}\n")
    return Outcome(Kind.FAILED, text, layer="execution")


def skip_reason(report: pytest.TestReport) -> str:
    """Return the reason that a skipped test's report states."""
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    return report.longreprtext


def _first_lines(text: str) -> str:
    lines = text.strip().splitlines()
    more = len(lines) - _STACK_LINES
    return "\n".join(lines[:_STACK_LINES] + ([f"[... {more} lines cut ...]"] if more > 0 else []))


def _report(
    item: pytest.Item, when: str, outcome: str, representation: ExceptionChainRepr | None
) -> pytest.TestReport:
    return pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords=dict.fromkeys(item.keywords, 1),
        outcome=outcome,  # type: ignore[arg-type]
        longrepr=representation,
        when=when,  # type: ignore[arg-type]
    )
