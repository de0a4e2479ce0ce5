"""Replaces the custom calls of a program with computations, before it is compiled."""

from __future__ import annotations

from collections.abc import Callable

from harness.lanes.hlo import Computation, Instruction, Module
from harness.lanes.virtual_tpu.inserted import Inserted, make_call

Shapes = tuple[tuple[int, ...], ...]  # of the operands of a call


def replace_custom_calls(
    module: bytes, target: str, replacement: Callable[[bytes, Shapes], bytes]
) -> tuple[bytes, list[bytes]]:
    """Make every custom call of ``target`` a call of the module that ``replacement`` returns.

    Args:
        module: a serialised HloModuleProto.
        target: the custom call's target, as ``tpu_custom_call``.
        replacement: from a custom call's ``backend_config`` and its operands' shapes to a
            serialised HloModuleProto whose entry computation takes the same operands and has the
            same result; called once for each different pair.

    Returns:
        The new module, and the ``backend_config`` of each call that was replaced.

    Raises:
        ValueError: a replacement takes other operands than the call gives it.
    """
    program = Module.FromString(module)
    calls = [
        (instruction, (instruction.backend_config, _operand_shapes(computation, instruction)))
        for computation in program.computations
        for instruction in computation.instructions
        if instruction.opcode == "custom-call" and instruction.custom_call_target == target
    ]
    inserted = Inserted(program)
    entries = {
        key: inserted.add(replacement(*key), "kernel")[-1]
        for key in dict.fromkeys(key for _, key in calls)
    }
    for call, key in calls:
        make_call(call, entries[key])
    inserted.finish()
    return program.SerializeToString(), [config for _, (config, _) in calls]


def _operand_shapes(computation: Computation, call: Instruction) -> Shapes:
    shapes = {i.id: tuple(i.shape.dimensions) for i in computation.instructions}
    return tuple(shapes[operand] for operand in call.operand_ids)
