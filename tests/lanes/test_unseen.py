"""Which errors count as given to a test, by the events of its processes."""

from __future__ import annotations

import pytest

from harness.lanes.events import Event, Events
from harness.lanes.unseen import unseen_error

ROOT = "IndexError: Out-of-bounds read\nmore of it"


def event(kind: str, text: str, since: float = 5.0, time: float = 9.0) -> Event:
    return Event(kind, "jax", process=1, thread=1, time=time, guard=None, stack=text, since=since)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([], ""),
        ([("seen", ROOT)], ""),
        ([("error", f"Compute error: {ROOT}")], ROOT),
        ([("error", f"Compute error: {ROOT}"), ("seen", f"Buffer Definition Event: {ROOT}")], ""),
        ([("seen", ROOT), ("error", f"Compute error: Error dispatching computation: {ROOT}")], ""),
        ([("error", ROOT), ("seen", f"a framework's own words: {ROOT}")], ""),
        ([("error", ROOT), ("seen", "RaceError: another")], ROOT),
        ([("error", ROOT), ("seen", "")], ROOT),
        ([("error", ROOT), ("failed", "rank 3 has ended")], "rank 3 has ended"),
        ([("failed", "rank 3 has ended"), ("seen", "rank 3 has ended\nat")], ""),
    ],
)
def test_an_error_that_nobody_was_given(events: list[tuple[str, str]], expected: str) -> None:
    assert unseen_error(Events(tuple(event(*each) for each in events))) == expected


def test_what_an_earlier_case_submitted_is_not_the_next_ones() -> None:
    events = Events((event("error", ROOT, since=5.0),))
    assert unseen_error(events, since=6.0) == ""
    assert unseen_error(events, since=4.0) == ROOT


@pytest.mark.parametrize(
    ("later", "expected"),
    [
        (f"Compute error: {ROOT}", ROOT),  # the same program again, whose error nobody was given
        (f"Compute error: Error dispatching computation: {ROOT}", ""),
        (f"Error preparing computation: {ROOT}", ""),
        ("RaceError: another", "RaceError: another"),
    ],
)
def test_what_was_submitted_after_an_error_was_given(later: str, expected: str) -> None:
    given = event("error", f"Compute error: {ROOT}"), event("seen", ROOT, time=6.0)
    assert unseen_error(Events((*given, event("error", later, since=7.0)))) == expected


def test_a_job_that_has_failed_fails_what_is_submitted_later() -> None:
    given = event("failed", ROOT), event("seen", ROOT, time=6.0)
    assert unseen_error(Events((*given, event("error", ROOT, since=7.0)))) == ""
