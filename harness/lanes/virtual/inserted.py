"""Computations of other modules in the place of a program's instructions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count

from google.protobuf.message import Message

from harness.lanes.hlo import Computation, Instruction, Metadata, Module

_KEPT = ("name", "shape", "metadata", "id", "control_predecessor_ids", "sharding")


class Inserted:
    """Computations to insert into a program, with names and ids that the program does not use.

    Args:
        program: is changed in place; ``finish`` ends that.
    """

    def __init__(self, program: Module) -> None:
        self._program = program
        self._computations: list[Computation] = []
        self._modules = 0
        ids = [i.id for c in program.computations for i in c.instructions]
        # Since 2025 an instruction's id holds its computation's in the upper half.
        self._wide = max(ids) >= 1 << 32
        self._computation_ids = count(max(c.id for c in program.computations) + 1)
        self._instruction_ids = count(max(ids) + 1)
        self._own: dict[int, Iterator[int]] = {}  # of a computation: the next instruction's id

    def add(self, module: bytes, prefix: str) -> list[Computation]:
        """Add the renamed computations of a serialised HloModuleProto; its entry is the last."""
        other = Module.FromString(module)
        ids = {computation.id: next(self._computation_ids) for computation in other.computations}
        for computation in other.computations:
            self._rename(computation, ids, f"{prefix}{self._modules}_")
        self._modules += 1
        entry = ids[other.entry_computation_id]
        own = sorted(other.computations, key=lambda computation: computation.id == entry)
        self._computations += own
        return own

    def new_id(self, computation: Computation) -> int:
        """Return an id for a further instruction of one of the program's own computations."""
        if not self._wide:
            return next(self._instruction_ids)
        if computation.id not in self._own:
            last = max(i.id for i in computation.instructions)
            self._own[computation.id] = count(last + 1)
        return next(self._own[computation.id])

    def finish(self) -> None:
        """XLA reads a module in one pass: what is called must stand before its caller."""
        own = list(self._program.computations)
        del self._program.computations[:]
        self._program.computations.extend(self._computations + own)

    def _rename(self, computation: Computation, computations: dict[int, int], prefix: str) -> None:
        computation.id = computations[computation.id]
        computation.name = prefix + computation.name
        own = (computation.id << 32 | n for n in count()) if self._wide else self._instruction_ids
        ids = {instruction.id: next(own) for instruction in computation.instructions}
        computation.root_id = ids[computation.root_id]
        for instruction in computation.instructions:
            instruction.name = prefix + instruction.name
            instruction.id = ids[instruction.id]
            # Its number is one of the other module's frames, and here of another line or of none.
            metadata = Metadata.FromString(instruction.metadata)
            metadata.ClearField("stack_frame_id")
            instruction.metadata = metadata.SerializeToString()
            for field, renamed in (
                (instruction.operand_ids, ids),
                (instruction.control_predecessor_ids, ids),
                (instruction.called_computation_ids, computations),
            ):
                field[:] = [renamed[number] for number in field]


def leave_out(computation: Computation, same: Mapping[int, int]) -> None:
    """Take out instructions, each of which has the value of another one, by their ids."""

    def final(number: int) -> int:
        while number in same:
            number = same[number]
        return number

    kept = [i for i in computation.instructions if i.id not in same]
    for instruction in kept:
        for field in (instruction.operand_ids, instruction.control_predecessor_ids):
            field[:] = map(final, field)
    computation.root_id = final(computation.root_id)
    del computation.instructions[:]
    computation.instructions.extend(kept)


def make_call(instruction: Instruction, computation: Computation) -> None:
    """Have an instruction call a computation that takes the same operands and has its result.

    Raises ValueError if the computation takes another number of operands.
    """
    parameters = sum(i.opcode == "parameter" for i in computation.instructions)
    if parameters != len(instruction.operand_ids):
        raise ValueError(
            f"it takes {parameters} operands, the call gives {len(instruction.operand_ids)}"
        )
    make(instruction, "call", instruction.operand_ids)
    instruction.called_computation_ids.append(computation.id)


def make(instruction: Instruction, opcode: str, operands: Sequence[int]) -> None:
    """Have an instruction be another one with those operands, and the same name and result."""
    kept = Instruction(opcode=opcode, operand_ids=operands)
    for field in _KEPT:
        _copy(instruction, kept, field)
    instruction.CopyFrom(kept)


def _copy(source: Message, target: Message, field: str) -> None:
    value = getattr(source, field)
    if hasattr(value, "extend"):
        getattr(target, field).extend(value)
    elif not source.HasField(field):
        return
    elif hasattr(value, "CopyFrom"):
        getattr(target, field).CopyFrom(value)
    else:
        setattr(target, field, value)
