"""Programs whose devices each call a kernel by themselves, as jaxlib's client takes them.

A sharding of what a function or a loop's body returns has no place in StableHLO, and the way there
loses those of some instructions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.lanes.hlo import Computation, Instruction, Module, Sharding
from harness.sensitivity.taken import instructions

_MANUAL = 4  # of xla_data.proto's OpSharding.Type
_SHARDING = "mhlo.sharding"
_CONSTANT = "stablehlo.constant"


def inline_manual_calls(module: Module) -> bool:
    """Inline the calls in a program's manual regions; return whether it has any.

    A kernel is a call that each device makes by itself. The sharding of what it returns is lost, so
    the partitioner would divide the result, and end the process. In one computation the sharding
    is propagated. Shardings in the regions' loops are removed, too.
    """
    if not any(
        instruction.opcode == "call" and _is_manual(instruction)
        for instruction in instructions(module)
    ):
        return False
    _Inliner(module).inline()
    for computation in module.computations:
        if computation.id != module.entry_computation_id:
            for instruction in filter(_is_manual, computation.instructions):
                instruction.ClearField("sharding")
    return True


def keep_manual(module: str | bytes) -> str:
    """Add the shardings that the conversion to StableHLO lost, and return the text.

    Sorts and slices lose theirs, and the partitioner ends the process at such a sort. A loop gets
    none: its body's result has no place for one. Constants enter a region through
    SPMDFullToShardShape, because equal ones are merged with those of the rest of the program.
    """
    from jax._src.interpreters.mlir import make_ir_context
    from jaxlib.mlir import ir

    with make_ir_context():
        parsed = ir.Module.parse(module)
        main = ir.SymbolTable(parsed.operation)["main"]
        manual: set[ir.Value] = set()
        for view in list(main.regions[0].blocks[0]):
            operation: Any = view.operation  # the stub's lists are not iterable
            if _SHARDING in operation.attributes:
                if "manual" not in ir.StringAttr(operation.attributes[_SHARDING]).value:
                    continue
            elif manual.isdisjoint(operation.operands):
                continue
            elif operation.name != "stablehlo.while" and operation.results:
                shardings = ["{manual}" for _ in operation.results]
                text = shardings[0] if len(shardings) == 1 else "{" + ", ".join(shardings) + "}"
                operation.attributes[_SHARDING] = ir.StringAttr.get(text)
            manual.update(operation.results)
            if operation.name == _CONSTANT:
                del operation.attributes[_SHARDING]
            _take_constants_in(operation)
        return str(parsed)


def _take_constants_in(operation: Any) -> None:
    """Give an operation of a manual region the region's own copy of each constant."""
    for number, value in enumerate(operation.operands):
        if getattr(value.owner, "name", "") == _CONSTANT:
            whole = _custom_call("Sharding", value, "{replicated}", operation)
            own = _custom_call("SPMDFullToShardShape", whole, "{manual}", operation)
            operation.operands[number] = own


def _custom_call(target: str, value: Any, sharding: str, before: Any) -> Any:
    """Insert a custom call before an operation; return its result, which has ``value``'s type."""
    from jaxlib.mlir import ir

    attributes = {"call_target_name": target, _SHARDING: sharding}
    made = ir.Operation.create(
        "stablehlo.custom_call",
        results=[value.type],
        operands=[value],
        attributes={name: ir.StringAttr.get(text) for name, text in attributes.items()},
        loc=before.location,
        ip=ir.InsertionPoint(before),
    )
    return made.result


def _is_manual(instruction: Instruction) -> bool:
    if not instruction.HasField("sharding"):
        return False
    sharding = Sharding.FromString(instruction.sharding)
    return all(each.type == _MANUAL for each in sharding.tuple_shardings or [sharding])


class _Inliner:
    """Replaces each call by a copy of the called computation."""

    def __init__(self, module: Module) -> None:
        self._computations = {each.id: each for each in module.computations}
        self._next = 1 + max(instruction.id for instruction in instructions(module))
        self._done: set[int] = set()

    def inline(self) -> None:
        for computation in self._computations.values():
            self._flatten(computation)

    def _flatten(self, computation: Computation) -> None:
        if computation.id in self._done:
            return
        self._done.add(computation.id)
        flat: list[Instruction] = []
        results: dict[int, int] = {}  # of each call, what stands for it
        for instruction in computation.instructions:
            _renumber(instruction, results)
            if instruction.opcode == "call":
                (called,) = instruction.called_computation_ids
                results[instruction.id] = self._copy(self._computations[called], instruction, flat)
            else:
                flat.append(instruction)
        computation.root_id = results.get(computation.root_id, computation.root_id)
        del computation.instructions[:]
        computation.instructions.extend(flat)

    def _copy(self, called: Computation, call: Instruction, flat: list[Instruction]) -> int:
        """Append a copy of ``called`` to ``flat``; return the id of its result."""
        self._flatten(called)
        ids: dict[int, int] = {}
        for instruction in called.instructions:
            if instruction.opcode == "parameter":
                ids[instruction.id] = call.operand_ids[instruction.parameter_number]
                continue
            copy = Instruction()
            copy.CopyFrom(instruction)
            _renumber(copy, ids)
            copy.id = ids[instruction.id] = self._next
            copy.name = f"{instruction.name}.{self._next}"
            self._next += 1
            flat.append(copy)
        return ids[called.root_id]


def _renumber(instruction: Instruction, ids: Mapping[int, int]) -> None:
    for field in (instruction.operand_ids, instruction.control_predecessor_ids):
        field[:] = [ids.get(number, number) for number in field]
