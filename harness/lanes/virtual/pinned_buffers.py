"""Buffers that a program pins, as the arrays in them: XLA's CPU compiler has no buffers."""

from __future__ import annotations

from harness.lanes.hlo import Module, Shape
from harness.lanes.virtual.inserted import leave_out

_BUFFER = 34  # of PrimitiveType in xla/xla_data.proto
_PINNED = ("Pin", "Unpin")  # targets of custom calls


def leave_out_pinning(program: Module) -> list[str]:
    """Make an array of each buffer of a program, in place; return a name for each that is pinned.

    A kernel that changes a buffer has it as an operand, and in its place a result.
    """
    names = []
    for computation in program.computations:
        same = {}
        for instruction in computation.instructions:
            _unpin(instruction.shape)
            if instruction.opcode == "custom-call":
                if instruction.custom_call_target in _PINNED:
                    same[instruction.id] = instruction.operand_ids[0]
                elif instruction.custom_call_target == "CreateBuffer":
                    instruction.custom_call_target = "AllocateBuffer"
        if same:
            leave_out(computation, same)
        names += ["pinning of a buffer"] * len(same)
    return names


def _unpin(shape: Shape) -> None:
    if shape.element_type == _BUFFER:
        inner = Shape()
        inner.CopyFrom(shape.tuple_shapes[0])
        shape.CopyFrom(inner)
    for part in shape.tuple_shapes:
        _unpin(part)
