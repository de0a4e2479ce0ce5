"""Replaces the custom calls of a program with computations, before it is compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from harness.lanes.hlo import Computation, Instruction, Module, Shape, Sharding
from harness.lanes.virtual.host_callbacks import TARGET
from harness.lanes.virtual.inserted import Inserted, make, make_call

_TOKEN, _TUPLE = 17, 13  # of PrimitiveType in xla/xla_data.proto
_METADATA = "kernel_metadata"  # JAX's name of an attribute
_OF_TUPLE, _MANUAL = 2, 4  # of OpSharding.Type there

Shapes = tuple[tuple[int, ...], ...]  # of the operands of a call


def replace_custom_calls(
    program: Module, target: str, replacement: Callable[[bytes, Shapes, bool], bytes]
) -> list[bytes]:
    """Make every custom call of ``target`` a call of the module that ``replacement`` returns.

    Args:
        program: is changed in place.
        target: the custom call's target, as ``tpu_custom_call``.
        replacement: from a custom call's ``backend_config``, its operands' shapes and whether
            anything in the program is divided, to a serialised HloModuleProto whose entry
            computation takes the same operands and has the same result, or a token and these, and
            then has a token and that as a tuple: one that has effects. Called once for each.

    Returns:
        The ``backend_config`` of each call that was replaced.

    Raises:
        ValueError: a replacement takes other operands than the call gives it.
    """
    divided = _is_divided(program)
    inserted = Inserted(program)
    entries: dict[tuple[bytes, Shapes, bool, bool], Computation] = {}
    configs = []
    replaced = []
    for computation in program.computations:
        calls = [
            (i, _is_manual(program, computation, i))
            for i in computation.instructions
            if i.opcode == "custom-call" and i.custom_call_target == target
        ]
        if calls:
            replaced.append((computation, calls))
    for computation, calls in replaced:
        shapes = {i.id: tuple(i.shape.dimensions) for i in computation.instructions}
        chain = _Chain(computation, inserted)
        for instruction, manual in calls:
            config = instruction.backend_config
            operands = tuple(shapes[operand] for operand in instruction.operand_ids)
            key = config, operands, manual, (runs := _runs_unread(instruction))
            if key not in entries:
                added = inserted.add(replacement(config, operands, divided), "kernel")
                entries[key] = added[-1]
                if manual:
                    _make_manual(i for c in added for i in c.instructions)
                if runs:
                    _keep(added[-1])
                _describe(added, instruction)
            chain.call(instruction, entries[key], manual=manual)
            configs.append(config)
        chain.finish()
    inserted.finish()
    return configs


def _is_divided(program: Module) -> bool:
    every = (i for computation in program.computations for i in computation.instructions)
    return any(
        i.HasField("sharding")
        or any(a.key.startswith("xla.sdy.") for a in i.frontend_attributes.map)
        for i in every
    )


def _is_manual(program: Module, computation: Computation, call: Instruction) -> bool:
    """Return whether a call is where GSPMD does not partition, as torch_xla's kernels are.

    There what has no sharding is partitioned nevertheless. Arrays do not mind, but a token between
    the two kinds ends the process.
    """
    by_id = {i.id: i for i in computation.instructions}
    left, seen = [call], set[int]()
    while left:
        for operand in set(left.pop().operand_ids) - seen:
            seen.add(operand)
            match by_id[operand].custom_call_target:
                case "SPMDFullToShardShape":
                    return True
                case "SPMDShardToFullShape":
                    continue
            left.append(by_id[operand])
    return any(
        _is_manual(program, caller, instruction)
        for caller in program.computations
        for instruction in caller.instructions
        if computation.id in instruction.called_computation_ids
    )


def _runs_unread(call: Instruction) -> bool:
    """Return whether a TPU's compiler keeps a call whose result nobody reads."""
    may_be_removed = any(
        attribute.key == "xla_allow_dce_side_effecting_op" and attribute.value == "true"
        for attribute in call.frontend_attributes.map
    )
    return call.custom_call_has_side_effect and not may_be_removed


def _keep(entry: Computation) -> None:
    """Give what replaces such a call the same effect, if it asks Python for anything."""
    for instruction in entry.instructions:
        if instruction.opcode == "custom-call" and instruction.custom_call_target == TARGET:
            instruction.custom_call_has_side_effect = True


def _describe(computations: Iterable[Computation], call: Instruction) -> None:
    """Give what asks Python the metadata of the kernel, which are in the optimized program then."""
    metadata = [a for a in call.frontend_attributes.map if a.key == _METADATA]
    for instruction in (i for computation in computations for i in computation.instructions):
        if instruction.opcode == "custom-call" and instruction.custom_call_target == TARGET:
            instruction.frontend_attributes.map.extend(metadata)


def _make_manual(instructions: Iterable[Instruction]) -> None:
    for instruction in instructions:
        parts = len(list(_leaves(instruction.shape)))
        manual = Sharding(type=_MANUAL)
        whole = Sharding(type=_OF_TUPLE, tuple_shardings=[manual] * max(parts, 1))
        of_tuple = instruction.shape.element_type == _TUPLE
        instruction.sharding = (whole if of_tuple else manual).SerializeToString()


def _leaves(shape: Shape) -> Iterator[Shape]:
    if shape.element_type != _TUPLE:
        yield shape
    for part in shape.tuple_shapes:
        yield from _leaves(part)


class _Chain:
    """The calls of one computation that have effects, each of which waits for the one before.

    Two that do not depend on each other may otherwise run by turns, a step of one and a step of
    the other, and a kernel has the simulated memory for itself until it ends.
    """

    def __init__(self, computation: Computation, inserted: Inserted) -> None:
        self._computation = computation
        self._inserted = inserted
        self._before: dict[int, list[Instruction]] = {}  # by the id of what they are put before
        self._token: Instruction | None = None

    def call(self, instruction: Instruction, entry: Computation, *, manual: bool) -> None:
        """Make an instruction the result of that computation, which may take a token."""
        parameters = [i for i in entry.instructions if i.opcode == "parameter"]
        if all(i.shape.element_type != _TOKEN for i in parameters):
            make_call(instruction, entry)
            return
        token = self._token or self._add(instruction, "after-all")
        call = self._add(instruction, "call", token.id, *instruction.operand_ids)
        (root,) = (i for i in entry.instructions if i.id == entry.root_id)
        if root.shape.element_type == _TOKEN:  # there are no results
            call.called_computation_ids.append(entry.id)
            self._token = call
            make(instruction, "tuple", [])
            if manual:
                _make_manual([*self._before[instruction.id], instruction])
            return
        of_tuple = instruction.shape.element_type == _TUPLE
        results = instruction.shape.tuple_shapes if of_tuple else [instruction.shape]
        call.shape.element_type = _TUPLE
        call.shape.tuple_shapes.extend([Shape(element_type=_TOKEN), *results])
        call.called_computation_ids.append(entry.id)
        self._token = self._add(instruction, "get-tuple-element", call.id)
        self._token.tuple_index = 0
        elements = []
        for index, shape in enumerate(results if of_tuple else [], start=1):
            elements.append(self._add(instruction, "get-tuple-element", call.id))
            elements[-1].tuple_index = index
            elements[-1].shape.CopyFrom(shape)
        if of_tuple:
            make(instruction, "tuple", [element.id for element in elements])
        else:
            make(instruction, "get-tuple-element", [call.id])
            instruction.tuple_index = 1
        if manual:
            _make_manual([*self._before[instruction.id], instruction])

    def finish(self) -> None:
        """Put what has been added where it belongs: operands stand before what takes them."""
        own = list(self._computation.instructions)
        del self._computation.instructions[:]
        for instruction in own:
            self._computation.instructions.extend(self._before.get(instruction.id, []))
            self._computation.instructions.append(instruction)

    def _add(self, before: Instruction, opcode: str, *operands: int) -> Instruction:
        """Add an instruction, which returns a token unless its shape is changed."""
        added = Instruction(opcode=opcode, operand_ids=operands)
        added.id = self._inserted.new_id(self._computation)
        added.name = f"{before.name}.{opcode}.{added.id & 0xFFFFFFFF}"
        added.shape.element_type = _TOKEN
        self._before.setdefault(before.id, []).append(added)
        return added
