"""Detect this machine's TPU from files and environment variables, without starting anything."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from harness.errors import BadInputError
from harness.platforms.description import Generation
from harness.platforms.tpu import libtpu_file
from harness.platforms.tpu.generations import GENERATIONS
from harness.platforms.tpu.variables import LAUNCH

_GOOGLE = 0x1AE0  # PCI's number for the vendor
_TYPE = re.compile(r"(?P<accelerator>[a-z0-9]+)-(?P<count>[1-9]\d*)")
_DEVICES, _PCI = Path("/dev"), Path("/sys/bus/pci/devices")


def chips(devices: Path = _DEVICES) -> list[Path]:
    """Return the device files of TPU chips: ``accel0`` up to v4, ``vfio/0`` since v5e."""
    vfio = (path for path in devices.glob("vfio/*") if path.name.isdecimal())
    return sorted([*devices.glob("accel[0-9]*"), *vfio])


def topology(
    environment: Mapping[str, str] = os.environ, devices: Path = _DEVICES, pci: Path = _PCI
) -> str:
    """Return the topology of this worker's job, with its generation and grid, as ``2xv6e:2x2``.

    On GKE ``TPU_ACCELERATOR_TYPE``, ``TPU_TOPOLOGY`` and ``MEGASCALE_NUM_SLICES`` have it; without
    them, it is the chips of this host. Raises BadInputError if there are no chips here, or the
    variables name an impossible topology.
    """
    if not chips(devices):
        raise BadInputError(
            f"no TPU on this machine: expected {devices}/accel0 or {devices}/vfio/0"
        )
    kind, grid = environment.get("TPU_ACCELERATOR_TYPE", ""), environment.get("TPU_TOPOLOGY", "")
    generation, size = _of_type(kind) if kind else _of_pci(pci)
    slices = environment.get(LAUNCH.slices) or "1"
    if not slices.isdecimal() or slices == "0":
        raise BadInputError(f"{LAUNCH.slices}={slices!r}: expected a number above 0")
    if not size and not grid:
        raise BadInputError(f"TPU_ACCELERATOR_TYPE={kind}: expected TPU_TOPOLOGY with it, as 2x2")
    of_grid = math.prod(map(int, grid.split("x"))) if re.fullmatch(r"\d+(x\d+)*", grid) else 0
    if of_grid and size not in (0, of_grid):
        raise BadInputError(
            f"TPU_ACCELERATOR_TYPE={kind} is a slice of {size} chips, TPU_TOPOLOGY={grid} one of "
            f"{of_grid}"
        )
    return f"{slices}x{generation.name}:{grid or size}"


def libtpu() -> str:
    """Return the path of the user's libtpu, or the stack's; raise BadInputError without any."""
    named = os.environ.get("TPU_LIBRARY_PATH", "")
    if not named and (own := libtpu_file.library()):
        named = str(own)
    if not named:
        raise BadInputError("libtpu is not installed: expected its package, or TPU_LIBRARY_PATH")
    return named


def _of_type(text: str) -> tuple[Generation, int]:
    """Return generation and chips of ``v6e-8``; 0 chips for GKE's label, which has no size."""
    match = _TYPE.fullmatch(text)
    for generation in GENERATIONS:
        if text == generation.gke:
            return generation, 0
        if match and match["accelerator"] in (generation.accelerator, generation.name):
            return generation, generation.chips(int(match["count"]))
    known = ", ".join(generation.accelerator_type(8) for generation in GENERATIONS)
    raise BadInputError(f"TPU_ACCELERATOR_TYPE={text!r}: expected one as {known}")


def _of_pci(folder: Path) -> tuple[Generation, int]:
    ids = Counter(
        _hexadecimal(path.parent / "device")
        for path in folder.glob("*/vendor")
        if _hexadecimal(path) == _GOOGLE
    )
    for generation in GENERATIONS:
        if count := ids[generation.pci]:
            return generation, count
    raise BadInputError("TPU_ACCELERATOR_TYPE is not set, and no chip on the PCI bus says its kind")


def _hexadecimal(path: Path) -> int:
    return int(path.read_text().strip(), 16)
