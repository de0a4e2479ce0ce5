"""Errors that ended what a test had queued, and of which no framework told the test."""

from __future__ import annotations

import re

from harness.lanes.events import Event, Events

# What XLA's CPU client puts in front of an error for each computation that it went through.
_PASSED_ON = re.compile(
    r"(?:(?:Compute error|Buffer Definition Event|Error (?:dispatching|preparing) computation): )+"
)


def unseen_error(events: Events, since: float = 0.0) -> str:
    """Return the first error that no process of the test was given; "" if there is none.

    An error is known by its first line: all that depends on what failed repeats it. What was
    submitted after a process had been given an error, and fails by itself in the same words, is
    another one. Why a job can't go on comes first, since it is the cause of what else fails in its
    processes.

    Args:
        events: of all processes of the test.
        since: leave out what was submitted before, in seconds of the machine's monotonic clock.
    """
    given = [(_cause(event), event.time) for event in events.of("seen")]
    of_job = {_cause(event) for event in events.of("failed")}
    errors = [*events.of("failed"), *(e for e in events.of("error") if e.since >= since)]
    for event in errors:
        cause = _cause(event)
        repeats = cause in of_job or _is_of_an_argument(event)
        earliest = 0.0 if repeats else event.since
        if cause and not any(
            other and time >= earliest and (cause in other or other in cause)
            for other, time in given
        ):
            return _PASSED_ON.sub("", event.stack or "", count=1)
    return ""


def _cause(event: Event) -> str:
    text = (event.stack or "").strip()
    return _PASSED_ON.sub("", text.partition("\n")[0])


def _is_of_an_argument(event: Event) -> bool:
    """Return whether a computation did not run at all, since an argument of it has no value."""
    passed_on = _PASSED_ON.match(event.stack or "")
    return passed_on is not None and "Error " in passed_on[0]
