"""Whether a case fits on the devices that a machine has."""

from __future__ import annotations

from harness.model.topology import Target, Topology
from harness.platforms import PLATFORMS


def why_not(target: Target, here: Topology) -> str:
    """Explain why a case with that target can't run on the devices that are here, or return "".

    A topology without a generation runs on any. The target's lane is that of a platform's hardware.
    """
    needed, hardware = target.topology, PLATFORMS[target.lane].hardware
    fits = needed.generation in ("", here.generation)
    if hardware is not None and hardware.divides:
        # Here is one machine, of whose devices a process may have some.
        fits &= needed.slices == needed.process_count == 1 and needed.devices <= here.devices
    else:
        same = (needed.slices, needed.devices) == (here.slices, here.devices)
        fits &= same and needed.grid in ((), here.grid)
    return "" if fits else f"needs {needed}, here {here}"
