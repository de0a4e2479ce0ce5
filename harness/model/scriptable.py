"""Tell from a case's id whether ``xla-harness repro`` may accept it; imports nothing."""

from __future__ import annotations

_LANE = "cpu"  # the only one that needs nothing of the harness while the case runs


def becomes_script(case_id: str) -> bool:
    """Return whether the id is of a ``lanes(...)`` test, on a lane that a script can have.

    The command may still refuse it, for example because of a fixture of pytest's own.
    """
    return f"[{_LANE}-" in case_id and "::" in case_id
