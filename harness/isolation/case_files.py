"""The files that are one case's own, and those of the cases that share its process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.lanes.event_file import EventFile
from harness.lanes.events import CASE_FOLDER
from harness.scratch import Scratch, remove

# Where torch.compile keeps what it has compiled, for all later processes of the user. The key has
# no version of torch_tpu: programs of an older release would answer for a newer one.
COMPILED = "TORCHINDUCTOR_CACHE_DIR"


@dataclass(frozen=True)
class CaseFiles:
    """The log of a case's events, and a folder for what it compiles and dumps."""

    log: EventFile
    folder: Path

    @classmethod
    def create(cls, scratch: Scratch) -> CaseFiles:
        """Make new ones in a run's folder."""
        return cls(EventFile(), scratch.folder())

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables that name them in the case's processes."""
        own = {CASE_FOLDER: str(self.folder), COMPILED: str(self.folder / "compiled")}
        return {**self.log.environment, **own}

    def close(self) -> None:
        """Remove them."""
        self.log.close()
        remove(self.folder)
