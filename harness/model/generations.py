"""The TPU generations: what the runtime reports of each, and which slices exist."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from math import isqrt

from harness.errors import BadInputError

# https://cloud.google.com/tpu/docs/v6e and /v5e; https://cloud.google.com/tpu/docs/v4, /v5p, /tpu7x
_PLANES = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_TORUSES = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16")


@dataclass(frozen=True)
class Generation:
    """One TPU generation, as libtpu describes it.

    ``accelerator`` is the first part of ``TPU_ACCELERATOR_TYPE``, whose number counts chips, or
    TensorCores where ``counts_cores``. A chip is so many ``devices``, each of so many ``cores``.
    """

    name: str
    device_kind: str
    accelerator: str
    cores: int = 1
    devices: int = 1
    counts_cores: bool = False
    torus: int = 2  # dimensions of a slice's grid of chips
    grids: tuple[str, ...] = _PLANES  # the slices that Google Cloud has
    gke: str = ""  # the value of GKE's node label gke-tpu-accelerator
    host_chips: int = 4  # of a slice of several hosts
    memory: int = 0  # GiB of HBM of a chip
    pci: int = 0  # the device id of a chip, by which JAX and torch_xla find it

    def accelerator_type(self, chips: int) -> str:
        """``v6e-8`` for a slice of 8 chips."""
        return f"{self.accelerator}-{chips * self._counted_of_a_chip}"

    def chips(self, counted: int) -> int:
        """Of the slice whose accelerator type ends with that number."""
        return counted // self._counted_of_a_chip

    @property
    def device_memory(self) -> int:
        """Return the HBM of one device in GiB."""
        return self.memory // self.devices

    @property
    def _counted_of_a_chip(self) -> int:
        return self.cores * self.devices if self.counts_cores else 1

    def hosts(self, chips: int, on_host: int = 0) -> int:
        """Of a slice of so many chips, ``on_host`` chips each (0: as the generation has).

        Raises ValueError when they are no whole number of hosts.
        """
        each = on_host or min(chips, self.host_chips)
        if chips % each:
            raise ValueError(f"{chips} chips are no whole number of hosts of {each}")
        return chips // each

    def bounds(self, chips: int) -> tuple[int, int, int]:
        """Chips of a slice along x, y and z; a line where ``chips`` forms no rectangle."""
        if self.torus == 3 and chips % 4 == 0:
            return 2, 2, chips // 4
        x = next(side for side in range(isqrt(chips), 0, -1) if chips % side == 0)
        return x, chips // x, 1

    def grid(self, size: tuple[int, ...]) -> tuple[int, ...]:
        """A slice's grid given its number of chips, ``(4,)``, or the grid itself, ``(2, 2)``.

        Raises ValueError when it has not as many dimensions as the generation's torus.
        """
        if len(size) == 1:
            return self.bounds(*size)[: self.torus]
        if len(size) != self.torus:
            example = self.grids[1]
            raise ValueError(
                f"{self.name} is a torus of {self.torus} dimensions: expected chips as {example}"
            )
        return size


GENERATIONS: Mapping[str, Generation] = {
    generation.name: generation
    for generation in (
        Generation(
            *("v4", "TPU v4", "v4", 2, 1, True, 3, _TORUSES),
            gke="tpu-v4-podslice",
            memory=32,
            pci=0x005E,
        ),
        Generation(
            "v5e", "TPU v5 lite", "v5litepod", gke="tpu-v5-lite-podslice", memory=16, pci=0x0063
        ),
        Generation(
            *("v5p", "TPU v5", "v5p", 2, 1, True, 3, _TORUSES),
            gke="tpu-v5p-slice",
            memory=95,
            pci=0x0062,
        ),
        Generation("v6e", "TPU v6 lite", "v6e", gke="tpu-v6e-slice", memory=32, pci=0x006F),
        Generation(
            *("tpu7x", "TPU7x", "tpu7x", 1, 2, True, 3, _TORUSES),
            gke="tpu7x",
            memory=192,
            pci=0x0076,
        ),
    )
}
_OTHER_NAMES = {"v7x": "tpu7x"}
DEFAULT = "v6e"


def generation_named(name: str) -> Generation:
    """The generation of that name, ``""`` for the default; raises BadInputError for others."""
    try:
        return GENERATIONS[_OTHER_NAMES.get(name, name) or DEFAULT]
    except KeyError:
        near = get_close_matches(name, GENERATIONS, n=1, cutoff=0.3)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise BadInputError(
            f"TPU generation {name!r}: expected one of {', '.join(GENERATIONS)}{hint}"
        ) from None
