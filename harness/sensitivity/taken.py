"""Programs as jaxlib's client takes them, which reads StableHLO: what is lost on the way there.

Two kinds of shardings in one program are not taken at all, nor is a reduce-scatter of several
operands.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.lanes.hlo import Instruction, Module

_GSPMD = ("Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape")


def leave_to_shardy(module: Module) -> None:
    """Take GSPMD's shardings out of a program that has Shardy's, which reads no others.

    jaxlib's client does not use Shardy for a program that has both, and GSPMD refuses its calls.
    Calls that GSPMD alone has, as in what an older JAX exported, keep theirs: Shardy reads those.
    """
    if any(map(_is_of_shardy, instructions(module))):
        for one in instructions(module):
            if one.custom_call_target not in _GSPMD or _is_of_shardy(one):
                one.ClearField("sharding")


def _is_of_shardy(one: Instruction) -> bool:
    return any(attribute.key.startswith("xla.sdy.") for attribute in one.frontend_attributes.map)


def divide_reduce_scatters(module: Module) -> None:
    """Make of each reduce-scatter of several operands a tuple of one for each of them."""
    every = list(instructions(module))
    number = 1 + max((one.id for one in every), default=0)
    channel = 1 + max((one.channel_id for one in every), default=0)
    for computation in module.computations:
        divided: list[Instruction] = []
        for one in computation.instructions:
            if one.opcode != "reduce-scatter" or not one.shape.tuple_shapes:
                divided.append(one)
                continue
            results = Instruction(name=one.name, opcode="tuple", id=one.id)
            results.shape.CopyFrom(one.shape)
            for operand, shape in zip(one.operand_ids, one.shape.tuple_shapes, strict=True):
                part = Instruction()
                part.CopyFrom(one)
                part.id, part.name, part.channel_id = number, f"{one.name}.{number}", channel
                part.operand_ids[:] = [operand]
                part.shape.CopyFrom(shape)
                divided.append(part)
                results.operand_ids.append(number)
                number, channel = number + 1, channel + 1
            divided.append(results)
        del computation.instructions[:]
        computation.instructions.extend(divided)


def instructions(module: Module) -> Iterator[Instruction]:
    """Of all its computations."""
    return (one for computation in module.computations for one in computation.instructions)
