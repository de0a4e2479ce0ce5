"""Operators that plant faults; each models a kind of bug that a compiler or lowering has had.

An operator finds the places of a program where its defect can occur, and plants it at one of them.
As far as can be known here, XLA still accepts the program.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from harness.lanes.hlo import Computation, Instruction, Sharding, SliceDimension
from harness.lanes.replica_groups import replica_groups
from harness.lanes.virtual.inserted import make
from harness.sensitivity.fault import STALE
from harness.sensitivity.program import BF16, F32, F64, S32, S64, U32, EditedModule, root_of

Edit = Callable[[], None]
Edits = Callable[[EditedModule, Computation, Instruction], Iterator[Edit]]

_ORDERED = ("all-gather", "reduce-scatter", "all-to-all")  # the order of a group's devices matters
_COLLECTIVES = ("all-reduce", "collective-permute", "collective-broadcast", *_ORDERED)
_OTHER_REDUCER = {
    "add": "maximum",
    "multiply": "add",
    "maximum": "minimum",
    "minimum": "maximum",
    "and": "or",
    "or": "and",
    "xor": "or",
}
_OTHER_COMPARISON = {"LT": "LE", "LE": "LT", "GT": "GE", "GE": "GT", "EQ": "NE", "NE": "EQ"}
_NOT_COMMUTATIVE = ("subtract", "divide", "power", "remainder", "compare", "atan2", "concatenate")
_ROUNDED = ("dot", "convolution", "reduce", *_COLLECTIVES)
_AXES = re.compile(r"\[(\{[^\]]*\})\]")  # of Shardy: what divides each dimension of one value
_SHARDY = "xla.sdy.sharding"


@dataclass(frozen=True)
class Operator:
    """Class of defects that can be planted.

    Attributes:
        name: its name on the command line and in reports.
        upstream: an issue that reports such a defect.
        edits: yields an edit for each way to get an instruction wrong.
    """

    name: str
    upstream: str
    edits: Edits

    def places(self, program: EditedModule) -> list[tuple[Instruction, Edit]]:
        """Return the instructions that it applies to, in order, each with the edit to make."""
        return [
            (instruction, edit)
            for computation, instruction in program.instructions()
            for edit in self.edits(program, computation, instruction)
        ]


# --- Collectives


def _dropped(program: EditedModule, _: Computation, instruction: Instruction) -> Iterator[Edit]:
    if instruction.opcode not in _COLLECTIVES:
        return
    operands, results = (
        program.operands(instruction),
        list(instruction.shape.tuple_shapes) or [instruction.shape],
    )
    if [list(o.shape.dimensions) for o in operands] == [list(r.dimensions) for r in results]:
        opcode = "tuple" if instruction.shape.tuple_shapes else "copy"
        yield partial(make, instruction, opcode, list(instruction.operand_ids))


def _merged(_: EditedModule, __: Computation, instruction: Instruction) -> Iterator[Edit]:
    groups = replica_groups(instruction) if instruction.opcode == "all-reduce" else []
    if len(groups) > 1:
        yield partial(_set_groups, instruction, [[n for group in groups for n in group]])


def _split(_: EditedModule, __: Computation, instruction: Instruction) -> Iterator[Edit]:
    groups = replica_groups(instruction) if instruction.opcode == "all-reduce" else []
    if groups and all(len(group) > 1 for group in groups):
        halves = [(group[: len(group) // 2], group[len(group) // 2 :]) for group in groups]
        yield partial(_set_groups, instruction, [half for both in halves for half in both])


def _permuted(_: EditedModule, __: Computation, instruction: Instruction) -> Iterator[Edit]:
    groups = replica_groups(instruction) if instruction.opcode in _COLLECTIVES else []
    if len(groups) > 1:
        first, second, *others = groups
        exchanged = [[*first[:-1], second[0]], [first[-1], *second[1:]], *others]
        yield partial(_set_groups, instruction, exchanged)
    if instruction.opcode in _ORDERED and groups and len(groups[0]) > 1:
        yield partial(_set_groups, instruction, [group[::-1] for group in groups])


def _reducer_changed(
    program: EditedModule, _: Computation, instruction: Instruction, opcodes: Sequence[str]
) -> Iterator[Edit]:
    if instruction.opcode not in opcodes or len(instruction.called_computation_ids) != 1:
        return
    (reducer,) = program.called(instruction)
    root = root_of(reducer)
    if root.opcode in _OTHER_REDUCER and instruction.shape.element_type:

        def edit() -> None:
            own = program.own_computation(instruction)
            root_of(own).opcode = _OTHER_REDUCER[root.opcode]

        yield edit


def _reduced_twice(
    program: EditedModule, own: Computation, instruction: Instruction
) -> Iterator[Edit]:
    if instruction.opcode != "all-reduce":
        return
    (reducer,) = program.called(instruction)
    root = root_of(reducer)
    if root.opcode == "add":

        def edit() -> None:
            once = program.move(own, instruction)
            program.give_own_channel(once)
            instruction.operand_ids[:] = [
                part.id for part in _parts(program, own, instruction, once)
            ]

        yield edit


def _parts(
    program: EditedModule, own: Computation, before: Instruction, whole: Instruction
) -> list[Instruction]:
    """Return the elements of a tuple, or the value itself if it is not a tuple."""
    if not whole.shape.tuple_shapes:
        return [whole]
    parts = []
    for number, operand in enumerate(program.operands(whole)):
        part = program.add(own, before, "get-tuple-element", [whole.id], operand)
        part.tuple_index = number
        parts.append(part)
    return parts


def _pairs_reversed(_: EditedModule, __: Computation, instruction: Instruction) -> Iterator[Edit]:
    pairs = [(pair.source, pair.target) for pair in instruction.source_target_pairs]
    if sorted(pairs) != sorted((target, source) for source, target in pairs):

        def edit() -> None:
            for pair in instruction.source_target_pairs:
                pair.source, pair.target = pair.target, pair.source

        yield edit


def _pair_left_out(_: EditedModule, __: Computation, instruction: Instruction) -> Iterator[Edit]:
    for number in range(len(instruction.source_target_pairs)):
        yield partial(_remove, instruction.source_target_pairs, number)


def _dimension_changed(
    program: EditedModule, own: Computation, instruction: Instruction
) -> Iterator[Edit]:
    if (
        instruction.opcode not in _ORDERED
        or len(instruction.operand_ids) != 1
        or len(instruction.dimensions) != 1
    ):
        return
    (operand,) = program.operands(instruction)
    before, (dimension,) = _dimensions(operand), instruction.dimensions
    if instruction.opcode == "all-to-all":
        size = len((replica_groups(instruction) or [[]])[0])
        for other, extent in enumerate(before):
            if other != dimension and size > 1 and extent and extent % size == 0:
                yield partial(instruction.dimensions.__setitem__, 0, other)
        return
    after = _dimensions(instruction)
    if not math.prod(after) or before[dimension] == after[dimension]:
        return
    for other, extent in enumerate(before):
        elements = extent * after[dimension]
        between = before[min(dimension, other) : max(dimension, other)]
        if elements % before[dimension] or math.prod(between) == 1:  # the same elements
            continue

        def edit(other: int = other, extent: int = elements // before[dimension]) -> None:
            moved = program.move(own, instruction)
            moved.dimensions[:] = [other]
            moved.shape.dimensions[:] = before
            moved.shape.dimensions[other] = extent
            make(instruction, "reshape", [moved.id])

        yield edit


# --- Shardings


def _sharding_dropped(_: EditedModule, __: Computation, instruction: Instruction) -> Iterator[Edit]:
    if _divides(instruction):
        yield partial(instruction.ClearField, "sharding")
    for number, attribute in enumerate(instruction.frontend_attributes.map):
        if attribute.key == _SHARDY and '"' in attribute.value:
            yield partial(_lose, instruction, number)


def _lose(instruction: Instruction, number: int) -> None:
    """Drop an annotation. A call for the annotation alone goes, too: GSPMD would need its own."""
    _remove(instruction.frontend_attributes.map, number)
    if instruction.custom_call_target == "Sharding":
        instruction.opcode = "reshape"
        instruction.ClearField("custom_call_target")
        instruction.ClearField("sharding")


def _replicated(_: EditedModule, __: Computation, instruction: Instruction) -> Iterator[Edit]:
    if _divides(instruction):
        yield partial(setattr, instruction, "sharding", Sharding(type=0).SerializeToString())
    yield from _axes_changed(instruction, lambda axes: ["{}" for _ in axes])


def _axes_swapped(_: EditedModule, __: Computation, instruction: Instruction) -> Iterator[Edit]:
    sharding = _divides(instruction)
    rank = len(instruction.shape.dimensions)
    if sharding and rank > 1 and len(set(sharding.tile_dimensions[:rank])) > 1:

        def edit() -> None:
            changed = Sharding.FromString(instruction.sharding)
            changed.tile_dimensions[:rank] = list(changed.tile_dimensions[:rank])[::-1]
            instruction.sharding = changed.SerializeToString()

        yield edit
    yield from _axes_changed(instruction, lambda axes: axes[::-1])


def _devices_reversed(_: EditedModule, __: Computation, instruction: Instruction) -> Iterator[Edit]:
    if sharding := _divides(instruction):
        devices = devices_of(sharding)

        def edit() -> None:
            changed = Sharding.FromString(instruction.sharding)
            changed.ClearField("iota_reshape_dims")
            changed.ClearField("iota_transpose_perm")
            changed.tile_devices[:] = devices[::-1]
            instruction.sharding = changed.SerializeToString()

        yield edit


def _axes_changed(
    instruction: Instruction, change: Callable[[list[str]], list[str]]
) -> Iterator[Edit]:
    """Yield edits of a value's Shardy annotation, if ``change`` makes it another one."""

    def changed(match: re.Match[str]) -> str:
        return f"[{', '.join(change(re.findall(r'{[^}]*}', match[1])))}]"

    for attribute in instruction.frontend_attributes.map:
        value = _AXES.sub(changed, attribute.value) if attribute.key == _SHARDY else ""
        if value and value != attribute.value:
            yield partial(setattr, attribute, "value", value)


def _divides(instruction: Instruction) -> Sharding | None:
    """Return how GSPMD divides an instruction's array over devices, or None if it does not."""
    if (
        not instruction.HasField("sharding")
        or not instruction.shape.element_type
        or instruction.shape.tuple_shapes
    ):
        return None
    if any(attribute.key == _SHARDY for attribute in instruction.frontend_attributes.map):
        return None  # Shardy reads only its own annotation
    sharding = Sharding.FromString(instruction.sharding)
    of_array = sharding.tile_dimensions[: len(instruction.shape.dimensions)]
    return sharding if sharding.type == _OTHER and math.prod(of_array) > 1 else None


_OTHER = 3  # of OpSharding.Type: neither replicated, nor on one device, nor manual


def devices_of(sharding: Sharding) -> list[int]:
    """Return the device of each tile, in row-major order."""
    if sharding.tile_devices:
        return list(sharding.tile_devices)
    grid = np.arange(math.prod(sharding.iota_reshape_dims)).reshape(*sharding.iota_reshape_dims)
    return [int(n) for n in grid.transpose(*sharding.iota_transpose_perm).flatten()]


# --- Arithmetic and data movement


def _shifted(program: EditedModule, own: Computation, instruction: Instruction) -> Iterator[Edit]:
    if instruction.opcode == "slice":
        (operand,) = program.operands(instruction)
        for bounds, extent in zip(instruction.slice_dimensions, _dimensions(operand), strict=True):
            if bounds.start or bounds.limit < extent:
                yield partial(_shift, bounds, -1 if bounds.start else 1)
    if instruction.opcode not in ("dynamic-slice", "dynamic-update-slice"):
        return
    whole, *others = program.operands(instruction)
    starts = others[1:] if instruction.opcode == "dynamic-update-slice" else others
    part = others[0] if instruction.opcode == "dynamic-update-slice" else instruction
    sizes = zip(_dimensions(whole), _dimensions(part), strict=True)
    first = len(instruction.operand_ids) - len(starts)
    for number, (extent, size) in enumerate(sizes):
        if len(starts) != len(whole.shape.dimensions) or size == extent:
            continue
        start = starts[number]
        if start.shape.element_type not in (S32, S64, U32):
            continue

        def edit(number: int = number, start: Instruction = start) -> None:
            constant = program.constant(own, instruction, start, 1)
            total = program.add(own, instruction, "add", [start.id, constant.id], start)
            instruction.operand_ids[first + number] = total.id

        yield edit


def _shift(bounds: SliceDimension, step: int) -> None:
    bounds.start, bounds.limit = bounds.start + step, bounds.limit + step


def _swapped(_: EditedModule, __: Computation, instruction: Instruction) -> Iterator[Edit]:
    operands = list(instruction.operand_ids)
    if instruction.opcode == "select":
        yield partial(_set_operands, instruction, [operands[0], operands[2], operands[1]])
    if instruction.comparison_direction in {"EQ", "NE"}:
        return
    if instruction.opcode in _NOT_COMMUTATIVE and len(operands) == 2 and operands[0] != operands[1]:
        yield partial(_set_operands, instruction, operands[::-1])


def _constant_off(_: EditedModule, __: Computation, instruction: Instruction) -> Iterator[Edit]:
    if instruction.opcode != "constant" or instruction.shape.dimensions:
        return
    literal = instruction.literal
    for values in (literal.s32s, literal.s64s):
        if len(values) == 1:
            yield partial(values.__setitem__, 0, values[0] + (1 if values[0] < 2**30 else -1))
    for floats in (literal.f32s, literal.f64s):
        if len(floats) == 1:
            off = 0.0 if math.isinf(floats[0]) else floats[0] * 1.25 or 1.0
            yield partial(floats.__setitem__, 0, off)


def _narrowed(program: EditedModule, own: Computation, instruction: Instruction) -> Iterator[Edit]:
    if instruction.opcode not in _ROUNDED:
        return
    if instruction.shape.element_type in (F32, F64):

        def edit() -> None:
            moved = program.move(own, instruction)
            make(instruction, "convert", [_narrow(program, own, instruction, moved).id])

        yield edit
    elif instruction.shape.tuple_shapes:  # it has several operands: narrow the first
        first = program.operands(instruction)[0]

        def edit_first() -> None:
            narrow = _narrow(program, own, instruction, first)
            instruction.operand_ids[0] = program.add(
                own, instruction, "convert", [narrow.id], first
            ).id

        if first.shape.element_type in (F32, F64):
            yield edit_first


def _narrow(
    program: EditedModule, own: Computation, before: Instruction, wide: Instruction
) -> Instruction:
    narrow = program.add(own, before, "convert", [wide.id], wide)
    narrow.shape.element_type = BF16
    return narrow


def _contraction_swapped(
    program: EditedModule, _: Computation, instruction: Instruction
) -> Iterator[Edit]:
    if instruction.opcode != "dot":
        return
    left, right = program.operands(instruction)
    numbers = instruction.dot_dimensions
    sides = (
        (left, numbers.lhs_contracting, numbers.lhs_batch),
        (right, numbers.rhs_contracting, numbers.rhs_batch),
    )
    for operand, contracting, batch in sides:
        extents = _dimensions(operand)
        for number, extent in enumerate(extents):
            if number in contracting or number in batch or len(contracting) != 1:
                continue
            if extent == extents[contracting[0]] and extent > 1:
                yield partial(contracting.__setitem__, 0, number)


def _comparison_changed(
    _: EditedModule, __: Computation, instruction: Instruction
) -> Iterator[Edit]:
    if instruction.comparison_direction:
        other = _OTHER_COMPARISON[instruction.comparison_direction]
        yield partial(setattr, instruction, "comparison_direction", other)


def _transposed(program: EditedModule, _: Computation, instruction: Instruction) -> Iterator[Edit]:
    if instruction.opcode != "transpose":
        return
    (operand,) = program.operands(instruction)
    extents = _dimensions(operand)
    order = list(instruction.dimensions)
    for a in range(len(order)):
        for b in range(a):
            if extents[order[a]] == extents[order[b]] > 1:
                other = list(order)
                other[a], other[b] = other[b], other[a]
                yield partial(instruction.dimensions.__setitem__, slice(None), other)


def _results_swapped(
    program: EditedModule, own: Computation, instruction: Instruction
) -> Iterator[Edit]:
    if instruction.opcode != "tuple" or instruction.id != own.root_id:
        return
    operands = program.operands(instruction)
    for number in range(1, len(operands)):
        first, second = operands[number - 1 : number + 1]
        if first.id != second.id and _type(first) == _type(second):
            order = list(instruction.operand_ids)
            order[number - 1], order[number] = order[number], order[number - 1]
            yield partial(_set_operands, instruction, order)


def _number_off(
    program: EditedModule, own: Computation, instruction: Instruction
) -> Iterator[Edit]:
    if instruction.opcode not in ("partition-id", "replica-id"):
        return

    def edit() -> None:
        moved = program.move(own, instruction)
        constant = program.constant(own, instruction, instruction, 1)
        make(instruction, "xor", [moved.id, constant.id])

    yield edit


def _remove(values: Any, number: int) -> None:
    del values[number]


def _set_operands(instruction: Instruction, operands: Sequence[int]) -> None:
    instruction.operand_ids[:] = operands


def _dimensions(instruction: Instruction) -> list[int]:
    return list(instruction.shape.dimensions)


def _type(instruction: Instruction) -> tuple[int, list[int]]:
    return instruction.shape.element_type, _dimensions(instruction)


def _set_groups(instruction: Instruction, groups: Sequence[Sequence[int]]) -> None:
    field = instruction.device_list if instruction.HasField("device_list") else instruction
    if instruction.HasField("device_list"):
        instruction.device_list.ClearField("iota")
    del field.replica_groups[:]
    for group in groups:
        field.replica_groups.add().replica_ids[:] = group


OPERATORS = {
    operator.name: operator
    for operator in (
        Operator("collective-dropped", "pytorch/xla#8854", _dropped),
        Operator("groups-merged", "aws-neuron/aws-neuron-sdk#1107", _merged),
        Operator("groups-split", "pytorch/xla#5279", _split),
        Operator("groups-permuted", "openxla/xla#45332", _permuted),
        Operator(
            "reducer-changed",
            "openxla/xla#8800",
            partial(_reducer_changed, opcodes=("all-reduce", "reduce-scatter")),
        ),
        Operator(
            "reduction-changed",
            "tenstorrent/tt-mlir#3646",
            partial(_reducer_changed, opcodes=("reduce",)),
        ),
        Operator("reduced-twice", "jax-ml/jax#3970", _reduced_twice),
        Operator("pairs-reversed", "jax-ml/jax#4348", _pairs_reversed),
        Operator("pair-left-out", "jax-ml/jax#1703", _pair_left_out),
        Operator("dimension-changed", "tenstorrent/tt-mlir#2626", _dimension_changed),
        Operator("sharding-dropped", "jax-ml/jax#23634", _sharding_dropped),
        Operator("sharding-replicated", "jax-ml/jax#26946", _replicated),
        Operator("sharding-axes-swapped", "tenstorrent/tt-xla#1726", _axes_swapped),
        Operator("sharding-devices-reversed", "jax-ml/jax#15903", _devices_reversed),
        Operator("slice-shifted", "openxla/xla#49122", _shifted),
        Operator("operands-swapped", "llvm/llvm-project#209041", _swapped),
        Operator("constant-off", "openxla/xla#46594", _constant_off),
        Operator("narrowed", "jax-ml/jax#9973", _narrowed),
        Operator("contraction-swapped", "tensor4all/tenferro-rs#1225", _contraction_swapped),
        Operator("comparison-changed", "llvm/llvm-project#197767", _comparison_changed),
        Operator("transpose-changed", "EnzymeAD/Reactant.jl#1117", _transposed),
        Operator("results-swapped", "pytorch/xla#8969", _results_swapped),
        Operator("device-number-off", "openxla/xla#49118", _number_off),
    )
}


def planted(fault: Mapping[str, Any], serialized: bytes) -> bytes:
    """Return a module with a fault in the format of ``Fault.text``.

    Raises IndexError if the module has no such place.
    """
    if fault["operator"] == STALE:
        return Path(fault["folder"], fault["other"]).read_bytes()
    program = EditedModule(serialized)
    _, edit = OPERATORS[fault["operator"]].places(program)[fault["place"]]
    edit()
    return program.serialize()
