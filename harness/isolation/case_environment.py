"""The environment variables of a case's process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Protocol

from harness.model.case import Case
from harness.model.topology import Topology


class LaneSetup(Protocol):
    """Lane as a case's process needs it; ``harness.lanes`` documents the methods."""

    def preload(self) -> None:
        """Load what every case of the lane needs, before the first is forked."""
        ...

    def environment(self, topology: Topology) -> Mapping[str, str | None]:
        """Return the variables to set before the runtime starts; None unsets."""
        ...

    def prepare(self, topology: Topology) -> None:
        """Set in the case's process what the environment no longer reaches."""
        ...


def full_environment(case: Case, lane: LaneSetup) -> dict[str, str | None]:
    """Return the changes to the parent's environment for the case's process; None unsets.

    ``XLA_FLAGS`` and ``LIBTPU_INIT_ARGS`` are lists of flags: the case's are added to those that
    torch_xla sets at import, since replacing them would change the numbers.
    """
    merged = dict(lane.environment(case.target.topology))
    for name, value in case.environment:
        adds = name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS") and value is not None
        merged[name] = f"{os.environ.get(name, '')} {value}".strip() if adds else value
    return merged
