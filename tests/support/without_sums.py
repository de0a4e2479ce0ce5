"""Makes the plugin of virtual devices compile a difference where a program adds."""

from __future__ import annotations

from harness.lanes.hlo import Module
from harness.lanes.virtual.lowering import as_hlo


def plant(form: str, code: bytes) -> tuple[bytes, list[tuple[str, str]]]:
    """Return a program with ``subtract`` in the place of ``add``."""
    module = Module.FromString(as_hlo(form, code))
    for computation in module.computations:
        for instruction in computation.instructions:
            if instruction.opcode == "add":
                instruction.opcode = "subtract"
    return module.SerializeToString(), [("without-sums", "")]
