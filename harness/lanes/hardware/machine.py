"""Detect this machine's TPU from files and environment variables, without starting anything."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from harness.errors import BadInputError
from harness.model.topology import Topology
from harness.platforms.description import Generation
from harness.platforms.tpu import TPU

_GOOGLE = 0x1AE0  # PCI's number for the vendor
_TYPE = re.compile(r"(?P<accelerator>[a-z0-9]+)-(?P<count>[1-9]\d*)")
_DEVICES, _PCI = Path("/dev"), Path("/sys/bus/pci/devices")


def chips(devices: Path = _DEVICES) -> list[Path]:
    """Return the device files of TPU chips: ``accel0`` up to v4, ``vfio/0`` since v5e."""
    vfio = (path for path in devices.glob("vfio/*") if path.name.isdecimal())
    return sorted([*devices.glob("accel[0-9]*"), *vfio])


def topology(
    environment: Mapping[str, str] = os.environ, devices: Path = _DEVICES, pci: Path = _PCI
) -> Topology:
    """Return the topology of this worker's job, with its generation and grid.

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
    slices = environment.get(TPU.launch.slices) or "1"
    if not slices.isdecimal() or slices == "0":
        raise BadInputError(f"{TPU.launch.slices}={slices!r}: expected a number above 0")
    if not size and not grid:
        raise BadInputError(f"TPU_ACCELERATOR_TYPE={kind}: expected TPU_TOPOLOGY with it, as 2x2")
    parsed = Topology.parse(f"{slices}x{generation.name}:{grid or size}")
    if size and parsed.chips != size:
        raise BadInputError(
            f"TPU_ACCELERATOR_TYPE={kind} is a slice of {size} chips, TPU_TOPOLOGY={grid} one of "
            f"{parsed.chips}"
        )
    return parsed


def why_not(needed: Topology, here: Topology) -> str:
    """Explain why a case of that topology can't run here, or return "".

    A topology without a generation runs on any.
    """
    same = (needed.slices, needed.devices) == (here.slices, here.devices)
    if same and needed.generation in ("", here.generation) and needed.grid in ((), here.grid):
        return ""
    return f"needs {needed}, here {here}"


def _of_type(text: str) -> tuple[Generation, int]:
    """Return generation and chips of ``v6e-8``; 0 chips for GKE's label, which has no size."""
    match = _TYPE.fullmatch(text)
    for generation in TPU.generations:
        if text == generation.gke:
            return generation, 0
        if match and match["accelerator"] in (generation.accelerator, generation.name):
            return generation, generation.chips(int(match["count"]))
    known = ", ".join(generation.accelerator_type(8) for generation in TPU.generations)
    raise BadInputError(f"TPU_ACCELERATOR_TYPE={text!r}: expected one as {known}")


def _of_pci(folder: Path) -> tuple[Generation, int]:
    ids = Counter(
        _hexadecimal(path.parent / "device")
        for path in folder.glob("*/vendor")
        if _hexadecimal(path) == _GOOGLE
    )
    for generation in TPU.generations:
        if count := ids[generation.pci]:
            return generation, count
    raise BadInputError("TPU_ACCELERATOR_TYPE is not set, and no chip on the PCI bus says its kind")


def _hexadecimal(path: Path) -> int:
    return int(path.read_text().strip(), 16)
