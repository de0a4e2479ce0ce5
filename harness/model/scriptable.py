"""Tell from a case's id whether ``xla-harness repro`` may accept it; imports no lane."""

from __future__ import annotations

import re

_ABLE = re.compile(r"::.*\[(cpu|virtual-tpu|virtual-gpu)-\d[^-\]]*[-\]]")  # they run programs


def becomes_script(case_id: str) -> bool:
    """Return whether the id is of a ``lanes(...)`` test that runs a program.

    The command may still refuse it, for example because of a fixture of pytest's own.
    """
    return _ABLE.search(case_id) is not None
