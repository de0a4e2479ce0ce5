"""Outcomes, times and quantities in a reader's words."""

from __future__ import annotations

from datetime import date, datetime

from harness.history.names import started

_SHORT = {
    "passed": "ok",
    "failed": "fail",
    "crashed": "crash",
    "hung": "hung",
    "conflict": "conflict",
    "skipped": "skip",
    "expected failure": "known",
    "unexpected pass": "fixed?",
}


def kind(outcome: str) -> str:
    """An outcome as a class of the style sheet."""
    return outcome.replace(" ", "-") if outcome in _SHORT else "other"


def day(value: date | datetime | None) -> str:
    """``2026-11-21``."""
    return value.strftime("%Y-%m-%d") if value else ""


def when(value: datetime) -> str:
    """``2026-11-21 02:30 UTC``; times are recorded in UTC."""
    return value.strftime("%Y-%m-%d %H:%M UTC")


def stamp(value: datetime) -> str:
    """As Atom writes a time."""
    return value.strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds(value: float | None) -> str:
    """A duration with two or three digits: ``12 ms``, ``1.25 s``, ``2 min 05 s``."""
    if value is None:
        return "-"
    if value < 1:
        return f"{value * 1000:.3g} ms"
    if value < 100:
        return f"{value:.3g} s"
    return f"{int(value // 60)} min {int(value % 60):02} s"


def number(value: float) -> str:
    """A recorded number, without digits that it does not have."""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.4g}"


def plural(count: int, noun: str, more: str = "") -> str:
    """``1 case``, ``1,200 cases``."""
    return f"{count:,} {noun if count == 1 else more or noun + 's'}"


def short(outcome: str) -> str:
    """An outcome in a narrow column."""
    return _SHORT.get(outcome, outcome or "-")


def run_time(run: str) -> datetime | None:
    """When a run started, in UTC: its name begins with it. None for a name of another kind."""
    try:
        return started(run)
    except ValueError:
        return None
