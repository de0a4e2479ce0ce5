"""Result of a case: what the messages, the output and the death of its process come to."""

from __future__ import annotations

import builtins
import warnings
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from harness.isolation import post_mortem
from harness.isolation.post_mortem import Death, KernelOomKills
from harness.isolation.supervisor import CommandResult
from harness.isolation.thread_limits import out_of_threads, out_of_threads_text
from harness.lanes.events import Events
from harness.messages.case_messages import ItemDone, PhaseReported, Warned
from harness.model.outcome import Kind


@dataclass
class ItemResult:
    """Result of running a case. Times are in seconds."""

    reports: list[pytest.TestReport] = field(default_factory=list)
    death: Death | None = None  # after those reports
    sections: list[tuple[str, str]] = field(default_factory=list)  # output until the last report
    stdout: str = ""  # after it
    stderr: str = ""
    events: Events = field(default_factory=Events)
    process: Events = field(default_factory=Events)  # of cases before it in its process, too
    runtime_start: dict[str, float] = field(default_factory=dict)  # seconds, by phase
    used: list[str] = field(default_factory=list)  # records of what its process has used
    wall: float = 0.0
    began: float = 0.0  # of the machine's monotonic clock


def interpreted(
    config: pytest.Config, result: CommandResult, oom_kills: KernelOomKills
) -> ItemResult:
    """Return what the messages of a case's process, its output and its death come to."""
    run = ItemResult()
    if result.death:
        run.death = explained(result.death, result.stderr, oom_kills)
    for phase in result.phases:
        run.stdout += phase.stdout
        run.stderr += phase.stderr
        match phase.message:
            case PhaseReported() as message:
                report = deserialized(config, message.report)
                run.sections += captured(report, run.stdout, run.stderr)
                report.sections += run.sections  # and those of all phases before, as pytest's
                run.reports.append(report)
                run.stdout = run.stderr = ""
            case Warned() as message:
                _warn(config, message)
            case ItemDone() as message:
                run.runtime_start, run.used = message.runtime_start, message.used
                _act_on(message)
    run.stdout += result.stdout
    run.stderr += result.stderr
    return run


def explained(death: Death, stderr: str, oom_kills: KernelOomKills) -> Death:
    """Add what only the log and the kernel know: XLA's fatal message, and lost memory."""
    reason = post_mortem.fatal_line(stderr)
    if post_mortem.out_of_memory_text(stderr):
        reason = f"out of memory: {reason}" if reason else "out of memory"
    elif death.kind == Kind.CRASHED and out_of_threads_text(stderr):
        reason = f"{out_of_threads()}: {reason}" if reason else out_of_threads()
    if death.signal == "SIGKILL" and oom_kills.happened():
        reason = "out of memory: killed by the kernel at the cgroup's limit"
    return replace(death, message=f"{death.message}: {reason}") if reason else death


def deserialized(config: pytest.Config, data: dict[str, Any]) -> pytest.TestReport:
    """Return the report that pytest serialised to ``data``, also after a way through JSON."""
    report = config.hook.pytest_report_from_serializable(config=config, data=data)
    assert isinstance(report, pytest.TestReport)
    if isinstance(report.longrepr, list):  # a skip's place and reason, a tuple before JSON
        report.longrepr = tuple(report.longrepr)
    return report


def _warn(config: pytest.Config, message: Warned) -> None:
    name, text = message.category, message.text
    category = getattr(builtins, name, UserWarning)
    if category.__name__ != name:  # one that perhaps only the child knows
        text = f"{name}: {text}"
    warning = warnings.WarningMessage(category(text), category, message.filename, message.lineno)
    config.hook.pytest_warning_recorded.call_historic(
        kwargs={
            "warning_message": warning,
            "when": message.when,
            "nodeid": message.nodeid,
            "location": None,
        }
    )


def captured(report: pytest.TestReport, stdout: str, stderr: str) -> list[tuple[str, str]]:
    """Return the output of the phase that a report is about, as sections of the report."""
    named = (("stdout", stdout), ("stderr", stderr))
    return [(f"Captured {name} {report.when}", text) for name, text in named if text]


def _act_on(done: ItemDone) -> None:
    """End the run if the test has asked for that."""
    if done.interrupted:
        raise KeyboardInterrupt
    if done.exit_reason is not None:
        pytest.exit(done.exit_reason, exit_code(done.exit_code))


def exit_code(code: int | None) -> int:
    """Return the exit code of a run that a case ends, for the one that the case asks for.

    The cases after it have not run, so it must be none with which a whole run ends.
    """
    return pytest.ExitCode.INTERRUPTED if code in (None, 0, 1, 5) else code
