"""Memory of the host in a program: its annotations left out, and where its results are kept.

To XLA's CPU compiler all memory is one, and it has no ``annotate_device_placement``. What a program
computes is the same without; in which memory its results are, the plugin reads in the program and
moves them there (``plugin/compile/memories.c``).
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.lanes.hlo import Attribute, Module
from harness.lanes.virtual.inserted import leave_out

_PLACEMENT = "annotate_device_placement"
_RESULTS = "xla_harness_results"  # the plugin looks for this text and a colon
_LETTERS = {"device": "d", "pinned_host": "p", "unpinned_host": "u"}


def note_memories(program: Module, kinds: Sequence[str]) -> None:
    """Note where the results of a program are, in place.

    Args:
        program: is changed, if a result is not in the device's memory.
        kinds: the memory of each result.

    Raises:
        ValueError: a memory kind is not known here.
    """
    if all(kind == "device" for kind in kinds):
        return
    if unknown := set(kinds) - set(_LETTERS):
        raise ValueError(f"memory kinds {sorted(unknown)}, expected one of {list(_LETTERS)}")
    letters = "".join(map(_LETTERS.__getitem__, kinds))
    attribute = Attribute(key=_RESULTS, value=f"{_RESULTS}:{letters};")
    program.frontend_attributes.map.append(attribute)


def leave_out_placements(program: Module) -> list[str]:
    """Take the annotations out of a program, in place.

    Returns:
        The name of each thing that has to do with the host's memory: what was taken out, and the
        note where results are.
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
    if any(attribute.key == _RESULTS for attribute in program.frontend_attributes.map):
        names.append("results in the host's memory")
    return names
