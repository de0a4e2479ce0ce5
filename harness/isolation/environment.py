"""What a case's process finds in its environment."""

from __future__ import annotations

import os

from harness.lanes import Lane
from harness.model.case import Case


def full_environment(case: Case, lane: Lane) -> dict[str, str | None]:
    """What differs from the parent's environment in the case's process.

    ``XLA_FLAGS`` and ``LIBTPU_INIT_ARGS`` are lists of flags: the case's are added to those that
    torch_xla sets at import, since replacing them would change the numbers.
    """
    merged = dict(lane.environment(case.target.topology))
    for name, value in case.environment:
        adds = name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS") and value is not None
        merged[name] = f"{os.environ.get(name, '')} {value}".strip() if adds else value
    return merged
