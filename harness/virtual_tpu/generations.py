"""The TPU generations that a virtual TPU can be, with what the runtime reports of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from math import isqrt

from harness.errors import BadInputError


@dataclass(frozen=True)
class Generation:
    """One TPU generation, as libtpu 0.0.23 describes it.

    ``accelerator`` is the first part of ``TPU_ACCELERATOR_TYPE``, whose number counts chips, or
    TensorCores where ``counts_cores``. A device is a chip with all its ``cores``.
    """

    name: str
    device_kind: str
    accelerator: str
    cores: int = 1
    counts_cores: bool = False
    torus: int = 2  # dimensions of a slice's mesh of chips

    def accelerator_type(self, devices: int) -> str:
        """``v6e-8`` for a slice of 8 devices."""
        return f"{self.accelerator}-{devices * (self.cores if self.counts_cores else 1)}"

    def bounds(self, devices: int) -> tuple[int, int, int]:
        """Chips of a slice along x, y and z; a line where ``devices`` forms no rectangle."""
        if self.torus == 3 and devices % 4 == 0:
            return 2, 2, devices // 4
        x = next(side for side in range(isqrt(devices), 0, -1) if devices % side == 0)
        return x, devices // x, 1


GENERATIONS: Mapping[str, Generation] = {
    generation.name: generation
    for generation in (
        Generation("v4", "TPU v4", "v4", cores=2, counts_cores=True, torus=3),
        Generation("v5e", "TPU v5 lite", "v5litepod"),
        Generation("v5p", "TPU v5", "v5p", cores=2, counts_cores=True, torus=3),
        Generation("v6e", "TPU v6 lite", "v6e"),
    )
}
DEFAULT = "v6e"


def generation_named(name: str) -> Generation:
    """The generation of that name, ``""`` for the default; raises BadInputError for others."""
    try:
        return GENERATIONS[name or DEFAULT]
    except KeyError:
        near = get_close_matches(name, GENERATIONS, n=1, cutoff=0.3)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise BadInputError(
            f"TPU generation {name!r}: expected one of {', '.join(GENERATIONS)}{hint}"
        ) from None
