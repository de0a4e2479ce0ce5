"""Whether ``xla-harness repro`` takes a case, as far as its id tells; imports nothing."""

from __future__ import annotations

_LANE = "cpu"  # the only one that needs nothing of the harness while the case runs


def becomes_script(case_id: str) -> bool:
    """Whether the id is that of a test with ``lanes(...)`` on a lane that a script can have.

    The command may still refuse one, as for a fixture that is pytest's own.
    """
    return f"[{_LANE}-" in case_id and "::" in case_id
