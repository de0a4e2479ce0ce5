"""An HLO module that faults are planted in: instructions are looked up, added and replaced."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from harness.lanes.hlo import Computation, Instruction, Module
from harness.lanes.virtual.inserted import Inserted

# Of PrimitiveType in https://github.com/openxla/xla/blob/main/xla/xla_data.proto.
S32, S64, U32, F32, F64, BF16 = 4, 5, 8, 11, 12, 16
_ADDRESSES = (S64, 9)  # and u64
_VALUES = {S32: "s32s", S64: "s64s", U32: "u32s"}


class Program:
    """A module that is changed in place.

    Args:
        serialized: a HloModuleProto.
    """

    def __init__(self, serialized: bytes) -> None:
        self.module = Module.FromString(serialized)
        self._inserted = Inserted(self.module)
        self._computations = {c.id: c for c in self.module.computations}
        self._instructions = {i.id: i for c in self.module.computations for i in c.instructions}

    def instructions(self) -> Iterator[tuple[Computation, Instruction]]:
        """Each instruction with its computation, in the module's order."""
        for computation in list(self.module.computations):
            for instruction in list(computation.instructions):
                yield computation, instruction

    def operands(self, instruction: Instruction) -> list[Instruction]:
        """What the instruction takes."""
        return [self._instructions[number] for number in instruction.operand_ids]

    def called(self, instruction: Instruction) -> list[Computation]:
        """The computations that it calls, as a reduction's."""
        return [self._computations[number] for number in instruction.called_computation_ids]

    def add(
        self,
        computation: Computation,
        before: Instruction,
        opcode: str,
        operands: Sequence[int],
        like: Instruction,
    ) -> Instruction:
        """A new instruction with the result type of ``like``, placed before another one."""
        new = Instruction(opcode=opcode, operand_ids=operands)
        new.shape.CopyFrom(like.shape)
        return self._place(computation, before, new)

    def constant(
        self, computation: Computation, before: Instruction, like: Instruction, value: int
    ) -> Instruction:
        """A scalar integer of the type of ``like``, placed before an instruction."""
        new = self.add(computation, before, "constant", [], like)
        new.literal.shape.CopyFrom(like.shape)
        getattr(new.literal, _VALUES[like.shape.element_type]).append(value)
        return new

    def own_computation(self, instruction: Instruction) -> Computation:
        """A copy, for this instruction alone, of the one computation that it calls."""
        (called,) = self.called(instruction)
        module = Module(entry_computation_id=called.id)
        module.computations.add().CopyFrom(called)
        own = self._inserted.add(module.SerializeToString(), "planted")[-1]
        instruction.called_computation_ids[:] = [own.id]
        self._computations[own.id] = own
        return own

    def move(self, computation: Computation, instruction: Instruction) -> Instruction:
        """A copy of an instruction, placed before it, so that it can be made of the copy."""
        copy = Instruction()
        copy.CopyFrom(instruction)
        return self._place(computation, instruction, copy)

    def give_own_channel(self, collective: Instruction) -> None:
        """Let it be another collective than the one that it was copied from.

        XLA takes collectives of one channel for parts of one, and orders them as such.
        """
        if collective.channel_id:
            every = (one.channel_id for _, one in self.instructions())
            collective.channel_id = 1 + max(every)

    def signature(self) -> str:
        """Of the entry computation: its parameters and its result."""
        entry = self._computations[self.module.entry_computation_id]
        found = [one for one in entry.instructions if one.opcode == "parameter"]
        found.sort(key=lambda one: one.parameter_number)
        shapes = b"|".join(one.shape.SerializeToString() for one in (*found, root_of(entry)))
        return hashlib.sha256(shapes).hexdigest()[:16]

    def serialize(self) -> bytes:
        """The module, as a HloModuleProto; nothing can be changed any more."""
        self._inserted.finish()
        return self.module.SerializeToString()

    def _place(
        self, computation: Computation, before: Instruction, new: Instruction
    ) -> Instruction:
        new.id = self._inserted.new_id(computation)
        new.name = f"planted.{new.id & 0xFFFFFFFF}"
        number = next(n for n, i in enumerate(computation.instructions) if i.id == before.id)
        computation.instructions.insert(number, new)
        placed = computation.instructions[number]
        self._instructions = {i.id: i for c in self.module.computations for i in c.instructions}
        return placed


def root_of(computation: Computation) -> Instruction:
    """The instruction whose result is the computation's."""
    return next(one for one in computation.instructions if one.id == computation.root_id)


def digest(code: bytes) -> str:
    """A program's name in a plan: equal for equal bytes."""
    return hashlib.sha256(code).hexdigest()[:16]


def likeness(serialized: bytes) -> str:
    """Equal for modules that differ in names, and in what they call of their own process.

    A Pallas kernel's interpreter calls functions by their addresses, which are others each time.
    """
    module = Module.FromString(serialized)
    places = {i.id: n for c in module.computations for n, i in enumerate(c.instructions)}
    told = hashlib.sha256()
    for computation in module.computations:
        for one in computation.instructions:
            for name in ("name", "metadata", "backend_config", "id", "called_computation_ids"):
                one.ClearField(name)
            one.operand_ids[:] = [places.get(number, -1) for number in one.operand_ids]
            if one.opcode == "constant" and one.shape.element_type in _ADDRESSES:
                one.ClearField("literal")
            told.update(one.SerializeToString(deterministic=True))
    return told.hexdigest()[:16]
