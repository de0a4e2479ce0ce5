"""The environment variables of a case's process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from harness.lanes.events import VARIABLE
from harness.model.case import Case
from harness.model.topology import Topology

# Where torch.compile keeps what it has compiled, for all later processes of the user. The key has
# no version of torch_tpu: programs of an older release would answer for a newer one.
COMPILED = "TORCHINDUCTOR_CACHE_DIR"
# torch_tpu keeps the executables of a job in /dev/shm, for later jobs of all users. The key has the
# versions of torch_tpu and of libtpu, but neither the plugin's nor its backend's; and what is found
# there is not submitted, and so not counted and not compiled by libtpu.
SHARED = "TORCH_TPU_TIER2_COMPILATION_CACHE"


class LaneSetup(Protocol):
    """What a case's process needs of its lane; ``harness.lanes`` says more of each method."""

    def preload(self) -> None:
        """Load what every case of the lane needs, before the first is forked."""
        ...

    def environment(self, topology: Topology) -> Mapping[str, str | None]:
        """What must stand in the environment before the runtime starts; None unsets."""
        ...

    def prepare(self, topology: Topology) -> None:
        """Set in the case's process what the environment no longer reaches."""
        ...


def full_environment(case: Case, lane: LaneSetup) -> dict[str, str | None]:
    """The changes to the parent's environment for the case's process; None unsets a variable.

    ``XLA_FLAGS`` and ``LIBTPU_INIT_ARGS`` are lists of flags: the case's are added to those that
    torch_xla sets at import, since replacing them would change the numbers.
    """
    merged = dict(lane.environment(case.target.topology))
    for name, value in case.environment:
        adds = name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS") and value is not None
        merged[name] = f"{os.environ.get(name, '')} {value}".strip() if adds else value
    return merged


def own_files(events: Path) -> dict[str, str | None]:
    """The variables that name a case's own files: its events, and what it compiles beside them."""
    compiled = str(events.with_suffix(".compiled"))
    return {VARIABLE: str(events), COMPILED: compiled, SHARED: "disabled"}
