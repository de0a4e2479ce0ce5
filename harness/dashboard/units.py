"""Outcomes, times and quantities in a reader's words."""

from __future__ import annotations

from datetime import date, datetime

from harness.history.names import started

# What wants to be read first comes first.
_URGENCY = (
    "crashed",
    "hung",
    "failed",
    "conflict",
    "unexpected pass",
    "expected failure",
    "skipped",
    "passed",
)


def kind(outcome: str) -> str:
    """Return the outcome's class in the style sheet."""
    return outcome.replace(" ", "-") if outcome in _URGENCY else "other"


def urgency(outcome: str) -> int:
    """Sorts outcomes by how much they want to be read."""
    return _URGENCY.index(outcome) if outcome in _URGENCY else len(_URGENCY)


def day(value: date | datetime | None) -> str:
    """Return the date in the form ``2026-11-21``."""
    return value.isoformat()[:10] if value else ""


def when(value: datetime) -> str:
    """Return the time in the form ``2026-11-21 02:30 UTC``; times are recorded in UTC."""
    return value.strftime("%Y-%m-%d %H:%M UTC")


def stamp(value: datetime) -> str:
    """Return a UTC time in Atom's format."""
    return value.strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds(value: float | None) -> str:
    """Return a duration with two or three digits: ``12 ms``, ``1.25 s``, ``2 min 05 s``."""
    if value is None:
        return "-"
    if value < 1:
        return f"{value * 1000:.3g} ms"
    if value < 100:
        return f"{value:.3g} s"
    return f"{int(value // 60)} min {int(value % 60):02} s"


def number(value: float) -> str:
    """Return a recorded number, without digits that it does not have."""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.4g}"


def plural(count: int, noun: str, more: str = "") -> str:
    """Return a count with its noun: ``1 case``, ``1,200 cases``."""
    return f"{count:,} {noun if count == 1 else more or noun + 's'}"


def run_time(run: str) -> datetime | None:
    """Return when a run started, in UTC, from its name; None if the name does not say it."""
    try:
        return started(run)
    except ValueError:
        return None
