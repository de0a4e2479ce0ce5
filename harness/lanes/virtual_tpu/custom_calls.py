"""Replaces the custom calls of a program with computations, before it is compiled."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from google.protobuf.message import Message

from harness.lanes.hlo import Computation, Instruction, Module

_KEPT = ("name", "shape", "metadata", "id", "operand_ids", "control_predecessor_ids", "sharding")


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
    inserted = _Inserted(program)
    for _, key in calls:
        if key not in inserted.entries:
            inserted.add(key, replacement(*key))
    for call, key in calls:
        entry = inserted.entries[key]
        if entry.parameters != len(call.operand_ids):
            raise ValueError(
                f"it takes {entry.parameters} operands, the call gives {len(call.operand_ids)}"
            )
        kept = Instruction(opcode="call", called_computation_ids=[entry.id])
        for field in _KEPT:
            _copy(call, kept, field)
        call.CopyFrom(kept)
    _callees_first(program, inserted.computations)
    return program.SerializeToString(), [config for _, (config, _) in calls]


def _operand_shapes(computation: Computation, call: Instruction) -> Shapes:
    shapes = {i.id: tuple(i.shape.dimensions) for i in computation.instructions}
    return tuple(shapes[operand] for operand in call.operand_ids)


class _Entry:
    def __init__(self, computation: Computation) -> None:
        self.id = computation.id
        self.parameters = sum(i.opcode == "parameter" for i in computation.instructions)


class _Inserted:
    """Computations of other modules, with names and ids that the program does not have."""

    def __init__(self, program: Module) -> None:
        self.computations: list[Computation] = []
        self.entries: dict[tuple[bytes, Shapes], _Entry] = {}
        ids = [i.id for c in program.computations for i in c.instructions]
        # Since 2025 an instruction's id holds its computation's in the upper half.
        self._wide = max(ids) >= 1 << 32
        self._computation_ids = count(max(c.id for c in program.computations) + 1)
        self._instruction_ids = count(max(ids) + 1)

    def add(self, key: tuple[bytes, Shapes], module: bytes) -> None:
        other = Module.FromString(module)
        ids = {computation.id: next(self._computation_ids) for computation in other.computations}
        for computation in other.computations:
            self._rename(computation, ids, f"kernel{len(self.entries)}_")
            self.computations.append(computation)
        entry = ids[other.entry_computation_id]
        self.entries[key] = next(_Entry(c) for c in other.computations if c.id == entry)

    def _rename(self, computation: Computation, computations: dict[int, int], prefix: str) -> None:
        computation.id = computations[computation.id]
        computation.name = prefix + computation.name
        own = (computation.id << 32 | n for n in count()) if self._wide else self._instruction_ids
        ids = {instruction.id: next(own) for instruction in computation.instructions}
        computation.root_id = ids[computation.root_id]
        for instruction in computation.instructions:
            instruction.name = prefix + instruction.name
            instruction.id = ids[instruction.id]
            for field, renamed in (
                (instruction.operand_ids, ids),
                (instruction.control_predecessor_ids, ids),
                (instruction.called_computation_ids, computations),
            ):
                field[:] = [renamed[number] for number in field]


def _callees_first(program: Module, computations: list[Computation]) -> None:
    """XLA reads a module in one pass: what is called must stand before its caller."""
    own = list(program.computations)
    del program.computations[:]
    program.computations.extend(computations + own)


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
