"""Whether a case fits on the devices that a machine has."""

from __future__ import annotations

from harness.model.topology import Topology


def why_not(needed: Topology, here: Topology, *, divides: bool) -> str:
    """Explain why a case of that topology can't run on the devices that are here, or return "".

    A topology without a generation runs on any. ``divides`` says whether a process may have some of
    the devices.
    """
    fits = needed.generation in ("", here.generation)
    if divides:
        fits &= needed.slices == needed.process_count == 1 and needed.devices <= here.devices
    else:
        same = (needed.slices, needed.devices) == (here.slices, here.devices)
        fits &= same and needed.grid in ((), here.grid)
    return "" if fits else f"needs {needed}, here {here}"
