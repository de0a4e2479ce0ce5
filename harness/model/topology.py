"""Where a case runs: a lane, and a topology on it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from harness.errors import BadInputError
from harness.model.generations import generation_named

_SPELLING = re.compile(
    r"(?:(?P<slices>[1-9]\d{0,6})x)?(?:(?P<generation>[a-z]\w*):)?"
    r"(?P<size>[1-9]\d{0,6}(?:x[1-9]\d{0,6})*)",
    re.ASCII,
)


@dataclass(frozen=True, order=True)
class Topology:
    """``slices`` slices of ``devices`` devices each; written ``2x4``, or ``4`` for one slice.

    A TPU's has a ``generation`` and the ``grid`` of a slice's chips too, and is written as libtpu
    writes a slice, with the number of slices in front: ``v6e:2x2``, ``2xv4:2x2x1``. ``2xv6e:4`` is
    read as ``2xv6e:2x2``. Without a generation, a TPU lane takes its own default.
    """

    slices: int
    devices: int
    generation: str = ""
    grid: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Topology:
        """Read ``4``, ``2x4``, ``v6e:2x2`` or ``2xv4:4``; BadInputError for anything else."""
        match = _SPELLING.fullmatch(text.strip())
        size = tuple(map(int, match["size"].split("x"))) if match else ()
        if match is None or (not match["generation"] and len(size) > 1):
            raise BadInputError(
                f"topology {text!r}: expected DEVICES or SLICESxDEVICES, as 4 or 2x4; for a TPU "
                "also [SLICESx]GENERATION:CHIPS, as v6e:4, v6e:2x2 or 2xv4:2x2x1"
            )
        slices = int(match["slices"] or 1)
        if not match["generation"]:
            return cls(slices, size[0])
        generation = generation_named(match["generation"])
        try:
            grid = generation.grid(size)
        except ValueError as error:
            raise BadInputError(f"topology {text!r}: {error}") from None
        return cls(slices, math.prod(grid), generation.name, grid)

    @property
    def total(self) -> int:
        """All devices of all slices."""
        return self.slices * self.devices

    @property
    def slice(self) -> str:
        """One slice of it, as libtpu names it: ``v6e:2x2``; without a generation its devices."""
        size = "x".join(map(str, self.grid or (self.devices,)))
        return f"{self.generation}:{size}" if self.generation else size

    def __str__(self) -> str:
        return self.slice if self.slices == 1 else f"{self.slices}x{self.slice}"


def check_slice(topology: Topology) -> None:
    """Raise BadInputError, with near matches, for a slice that Google Cloud does not offer.

    A topology without a generation is a number of devices only, and passes.
    """
    generation = generation_named(topology.generation)
    if not topology.generation or topology.slice.partition(":")[2] in generation.grids:
        return
    near = sorted(generation.grids, key=lambda grid: abs(_chips(grid) - topology.devices))[:3]
    near = [f"{generation.name}:{grid}" for grid in near]
    raise BadInputError(
        f"topology {topology}: {topology.slice} is not a slice of a TPU: did you mean "
        f"{', '.join(near[:-1])} or {near[-1]}? xla-harness topologies lists them all"
    )


def _chips(grid: str) -> int:
    return math.prod(map(int, grid.split("x")))


@dataclass(frozen=True)
class Target:
    """A lane's name and a topology; ``cpu-4`` in case ids."""

    lane: str
    topology: Topology

    def __str__(self) -> str:
        return f"{self.lane}-{self.topology}"
