"""Where a case runs: a lane, and a topology on it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from harness.errors import BadInputError

_SPELLING = re.compile(
    r"(?:(?P<generation>[a-z]\w*):)?(?:(?P<slices>[1-9]\d*)x)?(?P<devices>[1-9]\d*)"
)


@dataclass(frozen=True, order=True)
class Topology:
    """``slices`` slices of ``devices`` devices each; written ``2x4``, or ``4`` for one slice.

    Lanes that are TPUs take a ``generation`` in front, as ``v4:2x4``; ``""`` is the lane's own.
    """

    slices: int
    devices: int
    generation: str = ""

    @classmethod
    def parse(cls, text: str) -> Topology:
        """Read ``4``, ``2x4`` or ``v4:2x4``; raises BadInputError for anything else."""
        match = _SPELLING.fullmatch(text.strip())
        if match is None:
            raise BadInputError(
                f"topology {text!r}: expected DEVICES or SLICESxDEVICES, as 4 or 2x4; for a TPU "
                "also GENERATION:SLICESxDEVICES, as v4:2x4"
            )
        return cls(int(match["slices"] or 1), int(match["devices"]), match["generation"] or "")

    @property
    def total(self) -> int:
        """All devices of all slices."""
        return self.slices * self.devices

    def __str__(self) -> str:
        size = str(self.devices) if self.slices == 1 else f"{self.slices}x{self.devices}"
        return f"{self.generation}:{size}" if self.generation else size


@dataclass(frozen=True)
class Target:
    """A lane's name and a topology; ``cpu-4`` in case ids."""

    lane: str
    topology: Topology

    def __str__(self) -> str:
        return f"{self.lane}-{self.topology}"
