"""Target of a case: a lane, and a topology on it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from difflib import get_close_matches

from harness.errors import BadInputError
from harness.platforms import Platform, generation_named

_SPELLING = re.compile(
    r"(?:(?P<slices>[1-9]\d{0,6})x)?(?:(?P<generation>[a-z]\w*):)?"
    r"(?P<size>[1-9]\d{0,6}(?:x[1-9]\d{0,6})*)(?:@(?P<processes>[a-z]+))?",
    re.ASCII,
)

PROCESSES = ("chip", "host", "slice")
_UNITS = {**dict(zip(PROCESSES, PROCESSES, strict=True)), "device": "chip", "node": "host"}
ONE = "one"  # as options and markers write a job of one process


@dataclass(frozen=True, order=True)
class Topology:
    """``slices`` slices of ``devices`` devices each; written ``2x4``, or ``4`` for one slice.

    That of one platform has a ``generation`` and the ``grid`` of a slice's chips too, and is
    written as libtpu writes a slice, with the number of slices in front: ``v6e:2x2``,
    ``2xv4:2x2x1``. ``2xv6e:4`` is read as ``2xv6e:2x2``. Without a generation, a lane takes its
    platform's default. A chip of ``tpu7x`` is two devices.

    ``processes`` says how a job divides its devices: one process for each ``chip``, ``host`` or
    ``slice``, written ``2x4@chip``; "" is one process that has them all.
    """

    slices: int
    devices: int
    generation: str = ""
    grid: tuple[int, ...] = ()
    processes: str = ""

    @classmethod
    def parse(cls, text: str) -> Topology:
        """Read ``4``, ``2x4``, ``v6e:2x2`` or ``2xv4:4``; BadInputError for anything else."""
        match = _SPELLING.fullmatch(text.strip())
        size = tuple(map(int, match["size"].split("x"))) if match else ()
        if match is None or (not match["generation"] and len(size) > 1):
            raise BadInputError(
                f"topology {text!r}: expected DEVICES or SLICESxDEVICES, as 4 or 2x4, or "
                "[SLICESx]GENERATION:CHIPS, as v6e:4, v6e:2x2 or 2xv4:2x2x1; a job of several "
                "processes has @chip, @host or @slice after it, of GPUs @device or @node"
            )
        slices = int(match["slices"] or 1)
        try:
            processes = unit(match["processes"]) if match["processes"] else ""
        except BadInputError as error:
            raise BadInputError(f"topology {text!r}: {error}") from None
        if not match["generation"]:
            return cls(slices, size[0], processes=processes)
        generation = generation_named(match["generation"])
        try:
            grid = generation.grid(size)
        except ValueError as error:
            raise BadInputError(f"topology {text!r}: {error}") from None
        devices = math.prod(grid) * generation.devices
        return cls(slices, devices, generation.name, grid, processes)

    def on(self, platform: Platform) -> Topology:
        """Return the same devices with a generation: the platform's default if there is none."""
        if self.generation:
            return self
        generation = platform.generation("")
        return replace(self, generation=generation.name, grid=generation.grid((self.devices,)))

    def divided(self, processes: str) -> Topology:
        """Return the same devices for a job of a process each ``chip``, ``host``, ``slice``, or
        ``one``.

        Raises BadInputError for another word, and for a topology that names another one itself.
        """
        named = ONE if processes == ONE else unit(processes)
        if self.processes not in ("", named):
            raise BadInputError(f"topology {self}: expected no {processes!r} beside it")
        return replace(self, processes="" if named == ONE else named)

    @property
    def total(self) -> int:
        """Number of devices in all slices."""
        return self.slices * self.devices

    @property
    def chips(self) -> int:
        """Number of chips in one slice; a chip is one device or several."""
        return self.devices // generation_named(self.generation).devices

    @property
    def slice(self) -> str:
        """Name of one slice, as in libtpu: ``v6e:2x2``; without a generation, its devices."""
        size = "x".join(map(str, self.grid or (self.devices,)))
        return f"{self.generation}:{size}" if self.generation else size

    @property
    def bounds(self) -> tuple[int, int, int]:
        """Chips of one slice along x, y and z."""
        x, y, z = (*(self.grid or generation_named(self.generation).bounds(self.chips)), 1, 1)[:3]
        return x, y, z

    @property
    def host_bounds(self) -> tuple[int, int, int]:
        """Chips of one host along x, y and z, within a slice."""
        return generation_named(self.generation).host_bounds(self.bounds)

    @property
    def process_bounds(self) -> tuple[int, int, int]:
        """Chips of one process along x, y and z, within a slice."""
        if self.processes == "chip":
            return 1, 1, 1
        return self.host_bounds if self.processes == "host" else self.bounds

    @property
    def process_grid(self) -> tuple[int, int, int]:
        """Processes of one slice along x, y and z."""
        x, y, z = (a // b for a, b in zip(self.bounds, self.process_bounds, strict=True))
        return x, y, z

    @property
    def process_count(self) -> int:
        """Processes of the whole job."""
        return math.prod(self.process_grid) * self.slices if self.processes else 1

    @property
    def is_divisible(self) -> bool:
        """Return whether the processes divide the chips of a slice evenly among them."""
        return math.prod(self.process_grid) * math.prod(self.process_bounds) == self.chips

    def __str__(self) -> str:
        text = self.slice if self.slices == 1 else f"{self.slices}x{self.slice}"
        words = generation_named(self.generation).words if self.generation else {}
        return f"{text}@{words.get(self.processes, self.processes)}" if self.processes else text


def unit(word: str) -> str:
    """Return what has a process of its own, ``chip``, ``host`` or ``slice``, by any of its names.

    Raises BadInputError for another word.
    """
    if word not in _UNITS:
        near = get_close_matches(word, _UNITS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise BadInputError(
            f"processes {word!r}: expected a process for each {', '.join(PROCESSES)}, of GPUs "
            f"device or node, or {ONE}{hint}"
        )
    return _UNITS[word]


def check_slice(topology: Topology, platform: Platform) -> None:
    """Raise BadInputError, with near matches, for a slice that no device of the platform has.

    A topology without a generation is a number of devices only, and passes.
    """
    if not topology.generation:
        return
    try:
        generation = platform.generation(topology.generation)
    except BadInputError as error:
        raise BadInputError(f"topology {topology}: a {platform.title} {error}") from None
    if not generation.grids or topology.slice.partition(":")[2] in generation.grids:
        return
    near = sorted(generation.grids, key=lambda grid: abs(_chips(grid) - topology.chips))[:3]
    near = [f"{generation.name}:{grid}" for grid in near]
    raise BadInputError(
        f"topology {topology}: {topology.slice} is not a slice of a {platform.title}: "
        f"did you mean {' or '.join(filter(None, (', '.join(near[:-1]), near[-1])))}?"
    )


def _chips(grid: str) -> int:
    return math.prod(map(int, grid.split("x")))


@dataclass(frozen=True)
class Target:
    """A lane's name and a topology; ``cpu-4`` in case ids.

    A case that several frameworks are asked has the one it asks here, and in its id:
    ``virtual-tpu-4@chip-torch_tpu``.
    """

    lane: str
    topology: Topology
    framework: str = ""

    def __str__(self) -> str:
        named = f"-{self.framework}" if self.framework else ""
        return f"{self.lane}-{self.topology}{named}"
