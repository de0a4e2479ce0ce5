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


class EditedModule:
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
        """Yield each instruction with its computation, in the module's order."""
        for computation in list(self.module.computations):
            for instruction in list(computation.instructions):
                yield computation, instruction

    def operands(self, instruction: Instruction) -> list[Instruction]:
        """Return the instructions whose results the instruction takes."""
        return [self._instructions[number] for number in instruction.operand_ids]

    def called(self, instruction: Instruction) -> list[Computation]:
        """Return the computations that the instruction calls, such as a reduction's."""
        return [self._computations[number] for number in instruction.called_computation_ids]

    def add(
        self,
        computation: Computation,
        before: Instruction,
        opcode: str,
        operands: Sequence[int],
        like: Instruction,
    ) -> Instruction:
        """Add an instruction with the result type of ``like`` before another one; return it."""
        new = Instruction(opcode=opcode, operand_ids=operands)
        new.shape.CopyFrom(like.shape)
        return self._place(computation, before, new)

    def constant(
        self, computation: Computation, before: Instruction, like: Instruction, value: int
    ) -> Instruction:
        """Add a scalar integer of the type of ``like`` before an instruction; return it."""
        new = self.add(computation, before, "constant", [], like)
        new.literal.shape.CopyFrom(like.shape)
        getattr(new.literal, _VALUES[like.shape.element_type]).append(value)
        return new

    def own_computation(self, instruction: Instruction) -> Computation:
        """Give the instruction its own copy of the one computation that it calls; return it."""
        (called,) = self.called(instruction)
        module = Module(entry_computation_id=called.id)
        module.computations.add().CopyFrom(called)
        own = self._inserted.add(module.SerializeToString(), "planted")[-1]
        instruction.called_computation_ids[:] = [own.id]
        self._computations[own.id] = own
        return own

    def move(self, computation: Computation, instruction: Instruction) -> Instruction:
        """Add a copy before an instruction, which can then be computed from it; return the copy."""
        copy = Instruction()
        copy.CopyFrom(instruction)
        return self._place(computation, instruction, copy)

    def give_own_channel(self, collective: Instruction) -> None:
        """Make a copied collective independent of the original.

        XLA treats collectives of one channel as parts of one, and orders them so.
        """
        if collective.channel_id:
            every = (instruction.channel_id for _, instruction in self.instructions())
            collective.channel_id = 1 + max(every)

    def signature(self) -> str:
        """Return a hash of the types of the entry computation's parameters and result."""
        entry = self._computations[self.module.entry_computation_id]
        parameters = [
            instruction for instruction in entry.instructions if instruction.opcode == "parameter"
        ]
        parameters.sort(key=lambda instruction: instruction.parameter_number)
        shapes = b"|".join(
            instruction.shape.SerializeToString() for instruction in (*parameters, root_of(entry))
        )
        return hashlib.sha256(shapes).hexdigest()[:16]

    def serialize(self) -> bytes:
        """Return the module as a HloModuleProto. It must not be changed afterwards."""
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
    """Return the instruction whose result is the computation's."""
    return next(
        instruction
        for instruction in computation.instructions
        if instruction.id == computation.root_id
    )


def digest(code: bytes) -> str:
    """Return a hash of a program's bytes, its name in a plan."""
    return hashlib.sha256(code).hexdigest()[:16]


def likeness(serialized: bytes) -> str:
    """Return a hash that ignores names, and the addresses of functions that a module calls.

    A Pallas kernel's interpreter calls functions by their addresses, which differ in each process.
    """
    module = Module.FromString(serialized)
    places = {i.id: n for c in module.computations for n, i in enumerate(c.instructions)}
    hashed = hashlib.sha256()
    for computation in module.computations:
        for instruction in computation.instructions:
            for name in ("name", "metadata", "backend_config", "id", "called_computation_ids"):
                instruction.ClearField(name)
            instruction.operand_ids[:] = [
                places.get(number, -1) for number in instruction.operand_ids
            ]
            if instruction.opcode == "constant" and instruction.shape.element_type in _ADDRESSES:
                instruction.ClearField("literal")
            hashed.update(instruction.SerializeToString(deterministic=True))
    return hashed.hexdigest()[:16]
