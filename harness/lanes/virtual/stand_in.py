"""A program that takes and returns what another one does, and computes nothing.

Where a vendor's compiler compiles each program as well, one that XLA's CPU compiler refuses is no
end: whoever submits it is given this in its place. That it ran is an event, since its results mean
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.lanes.hlo import Computation, Instruction, Layout, Literal, Module, Shape
from harness.lanes.virtual.inserted import Inserted, make
from harness.lanes.virtual.lowering import as_hlo

_SHARDINGS = ("Sharding", "xla.sdy.FuncResultSharding")
_S32, _TUPLE, _TOKEN = 4, 13, 17  # of PrimitiveType in xla/xla_data.proto


def stand_in(form: str, program: bytes) -> tuple[bytes, list[tuple[str, str]]]:
    """Return a serialised HloModuleProto whose results are zeros, with the same shardings.

    Args:
        form: ``hlo`` for a serialised HloModuleProto, ``mlir`` for a StableHLO portable artifact.
        program: what the CPU's compiler has refused.

    Returns:
        The module, and one name and mode, like every function that changes a program.
    """
    module = Module.FromString(as_hlo(form, program))
    (entry,) = (c for c in module.computations if c.id == module.entry_computation_id)
    inserted = Inserted(module)
    by_id = {i.id: i for i in entry.instructions}
    root = by_id[entry.root_id]
    kept = [i for i in entry.instructions if i.opcode == "parameter" and i.id != root.id]
    results = [by_id[n] for n in root.operand_ids] if root.opcode == "tuple" else [root]
    for result in {result.id: result for result in results}.values():
        if result.opcode == "parameter":
            continue
        # Of a result that says only how it is divided, what it says that of.
        says = result.custom_call_target in _SHARDINGS
        zeros = by_id[result.operand_ids[0]] if says else result
        if zeros.opcode != "parameter":
            kept += _zeros(zeros, entry, inserted)
        kept += [result] if says else []
    kept += [root] if root.opcode in ("tuple", "parameter") else []
    del entry.instructions[:]
    entry.instructions.extend(_without_repeats(kept))
    del module.computations[:]
    module.computations.append(entry)
    return module.SerializeToString(), [("stand-in", "")]


def _zeros(instruction: Instruction, entry: Computation, inserted: Inserted) -> list[Instruction]:
    """Return what must come before an instruction that becomes zeros of its shape, and itself."""
    shape = instruction.shape
    if shape.element_type == _TOKEN:
        make(instruction, "after-all", [])
        return [instruction]
    if shape.element_type == _TUPLE:
        raise ValueError("a tuple among the results")
    zero = Instruction(opcode="constant", name=f"{instruction.name}.zero")
    zero.id = inserted.new_id(entry)
    zero.shape.CopyFrom(Shape(element_type=_S32, layout=Layout()))
    zero.literal.CopyFrom(Literal(shape=zero.shape, s32s=[0]))
    number = Instruction(opcode="convert", name=f"{instruction.name}.number", operand_ids=[zero.id])
    number.id = inserted.new_id(entry)
    number.shape.CopyFrom(Shape(element_type=shape.element_type, layout=Layout()))
    attributes = list(instruction.frontend_attributes.map)
    make(instruction, "broadcast", [number.id])
    instruction.frontend_attributes.map.extend(attributes)
    return [zero, number, instruction]


def _without_repeats(instructions: list[Instruction]) -> Iterator[Instruction]:
    seen: set[int] = set()
    for instruction in instructions:
        if instruction.id not in seen:
            seen.add(instruction.id)
            yield instruction
