"""Makes the plugin of virtual devices compile an absolute value where a program negates."""

from __future__ import annotations

from harness.lanes.hlo import Module
from harness.lanes.virtual.lowering import as_hlo


def plant(form: str, code: bytes) -> tuple[bytes, list[tuple[str, str]]]:
    """Return a program with ``abs`` in the place of ``negate``."""
    module = Module.FromString(as_hlo(form, code))
    for computation in module.computations:
        for instruction in computation.instructions:
            if instruction.opcode == "negate":
                instruction.opcode = "abs"
    return module.SerializeToString(), []
