"""Tell from a case's id whether ``xla-harness repro`` may accept it; imports no lane."""

from __future__ import annotations

import re

# Lanes that run programs, and a topology in one process: no ``@chip`` follows.
_ABLE = re.compile(r"::.*\[(cpu|virtual-tpu|virtual-gpu)-\d[^-@\]]*[-\]]")


def becomes_script(case_id: str) -> bool:
    """Return whether the id is of a ``lanes(...)`` test that one process runs.

    The command may still refuse it, for example because of a fixture of pytest's own.
    """
    return _ABLE.search(case_id) is not None
