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
    """Leave no calls in a program's manual regions, nor shardings in their loops, if it has any.

    A kernel is a call that all devices make by themselves. Without the sharding of what it returns
    the partitioner would divide that, and ends the process; in one computation it is propagated.
    """
    if not any(one.opcode == "call" and _is_manual(one) for one in instructions(module)):
        return False
    _Inliner(module).inline()
    for computation in module.computations:
        if computation.id != module.entry_computation_id:
            for one in filter(_is_manual, computation.instructions):
                one.ClearField("sharding")
    return True


def keep_manual(module: str | bytes) -> str:
    """StableHLO of what ``inline_manual_calls`` left, with the shardings that were lost on the way.

    Sorts and slices have none any more, and the partitioner ends the process at such a sort. A loop
    gets none: what its body returns has no place for one. Constants come in through
    SPMDFullToShardShape: of equal ones only one is left, and the rest of the program has it, too.
    """
    from jax._src.interpreters.mlir import make_ir_context
    from jaxlib.mlir import ir

    with make_ir_context():
        parsed = ir.Module.parse(module)
        main = ir.SymbolTable(parsed.operation)["main"]
        manual: set[ir.Value] = set()
        for view in list(main.regions[0].blocks[0]):
            one: Any = view.operation  # the stub's lists are not iterable
            if _SHARDING in one.attributes:
                if "manual" not in ir.StringAttr(one.attributes[_SHARDING]).value:
                    continue
            elif manual.isdisjoint(one.operands):
                continue
            elif one.name != "stablehlo.while" and one.results:
                told = ["{manual}" for _ in one.results]
                text = told[0] if len(told) == 1 else "{" + ", ".join(told) + "}"
                one.attributes[_SHARDING] = ir.StringAttr.get(text)
            manual.update(one.results)
            if one.name == _CONSTANT:
                del one.attributes[_SHARDING]
            _take_constants_in(one)
        return str(parsed)


def _take_constants_in(one: Any) -> None:
    """Have an operation of a manual region take each constant as that region's own."""
    for number, value in enumerate(one.operands):
        if getattr(value.owner, "name", "") == _CONSTANT:
            whole = _custom_call("Sharding", value, "{replicated}", one)
            own = _custom_call("SPMDFullToShardShape", whole, "{manual}", one)
            one.operands[number] = own


def _custom_call(target: str, value: Any, sharding: str, before: Any) -> Any:
    """The result, of ``value``'s type, of a custom call that stands before an operation."""
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


def _is_manual(one: Instruction) -> bool:
    if not one.HasField("sharding"):
        return False
    sharding = Sharding.FromString(one.sharding)
    return all(each.type == _MANUAL for each in sharding.tuple_shardings or [sharding])


class _Inliner:
    """Puts what each call calls in its place."""

    def __init__(self, module: Module) -> None:
        self._computations = {each.id: each for each in module.computations}
        self._next = 1 + max(one.id for one in instructions(module))
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
        for one in computation.instructions:
            _renumber(one, results)
            if one.opcode == "call":
                (called,) = one.called_computation_ids
                results[one.id] = self._copy(self._computations[called], one, flat)
            else:
                flat.append(one)
        computation.root_id = results.get(computation.root_id, computation.root_id)
        del computation.instructions[:]
        computation.instructions.extend(flat)

    def _copy(self, called: Computation, call: Instruction, flat: list[Instruction]) -> int:
        """The id of the result in a copy of all that ``called`` has, which is appended."""
        self._flatten(called)
        ids: dict[int, int] = {}
        for one in called.instructions:
            if one.opcode == "parameter":
                ids[one.id] = call.operand_ids[one.parameter_number]
                continue
            copy = Instruction()
            copy.CopyFrom(one)
            _renumber(copy, ids)
            copy.id = ids[one.id] = self._next
            copy.name = f"{one.name}.{self._next}"
            self._next += 1
            flat.append(copy)
        return ids[called.root_id]


def _renumber(one: Instruction, ids: Mapping[int, int]) -> None:
    for field in (one.operand_ids, one.control_predecessor_ids):
        field[:] = [ids.get(number, number) for number in field]
