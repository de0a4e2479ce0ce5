"""Rewrites programs so that jaxlib's client, which reads StableHLO, accepts them.

It accepts neither two kinds of shardings in one program nor a reduce-scatter of several operands.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.lanes.hlo import Instruction, Module

_GSPMD = ("Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape")


def leave_to_shardy(module: Module) -> None:
    """Remove GSPMD's shardings from a program that has Shardy's.

    For a program with both, jaxlib's client does not use Shardy, and GSPMD refuses Shardy's calls.
    Shardy does read the shardings of GSPMD's own calls, as an older JAX exported them, so these
    stay.
    """
    if any(map(_is_of_shardy, instructions(module))):
        for instruction in instructions(module):
            if instruction.custom_call_target not in _GSPMD or _is_of_shardy(instruction):
                instruction.ClearField("sharding")


def _is_of_shardy(instruction: Instruction) -> bool:
    return any(
        attribute.key.startswith("xla.sdy.") for attribute in instruction.frontend_attributes.map
    )


def divide_reduce_scatters(module: Module) -> None:
    """Replace each reduce-scatter of several operands by a tuple of one for each operand."""
    every = list(instructions(module))
    number = 1 + max((instruction.id for instruction in every), default=0)
    channel = 1 + max((instruction.channel_id for instruction in every), default=0)
    for computation in module.computations:
        divided: list[Instruction] = []
        for instruction in computation.instructions:
            if instruction.opcode != "reduce-scatter" or not instruction.shape.tuple_shapes:
                divided.append(instruction)
                continue
            results = Instruction(name=instruction.name, opcode="tuple", id=instruction.id)
            results.shape.CopyFrom(instruction.shape)
            for operand, shape in zip(
                instruction.operand_ids, instruction.shape.tuple_shapes, strict=True
            ):
                part = Instruction()
                part.CopyFrom(instruction)
                part.id, part.name, part.channel_id = (
                    number,
                    f"{instruction.name}.{number}",
                    channel,
                )
                part.operand_ids[:] = [operand]
                part.shape.CopyFrom(shape)
                divided.append(part)
                results.operand_ids.append(number)
                number, channel = number + 1, channel + 1
            divided.append(results)
        del computation.instructions[:]
        computation.instructions.extend(divided)


def instructions(module: Module) -> Iterator[Instruction]:
    """Yield the instructions of every computation."""
    return (
        instruction
        for computation in module.computations
        for instruction in computation.instructions
    )
