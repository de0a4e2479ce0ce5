"""Memory of the host in a program: its annotations left out, and where its results are kept.

To XLA's CPU compiler all memory is one, and it has no ``annotate_device_placement``. What a program
computes is the same without; in which memory its results are, the plugin reads in the program and
moves them there (``plugin/memories.c``).
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.lanes.hlo import Attribute, Module
from harness.lanes.virtual_tpu.inserted import leave_out

_PLACEMENT = "annotate_device_placement"
_RESULTS = "xla_harness_results"  # the plugin looks for this text and a colon
_LETTERS = {"device": "d", "pinned_host": "p", "unpinned_host": "u"}


def leave_out_placements(program: Module, results: Sequence[str]) -> list[str]:
    """Take the annotations out of a program, in place, and note where its results are.

    Args:
        program: is changed.
        results: the memory kind of each result; none if they are not known.

    Returns:
        The name of what was taken out or noted, each time.

    Raises:
        ValueError: a memory kind is not known here.
    """
    names = []
    for computation in program.computations:
        same = {
            i.id: i.operand_ids[0]
            for i in computation.instructions
            if i.opcode == "custom-call" and i.custom_call_target == _PLACEMENT
        }
        if same:
            leave_out(computation, same)
        names += ["placement in a memory"] * len(same)
    if any(kind != "device" for kind in results):
        if unknown := set(results) - set(_LETTERS):
            raise ValueError(f"memory kinds {sorted(unknown)}, expected one of {list(_LETTERS)}")
        letters = "".join(map(_LETTERS.__getitem__, results))
        attribute = Attribute(key=_RESULTS, value=f"{_RESULTS}:{letters};")
        program.frontend_attributes.map.append(attribute)
        names.append("results in the host's memory")
    return names
