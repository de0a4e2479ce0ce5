"""What can be wrong with a program: each operator is a class of defects that compilers have had.

An operator finds the places of a program where its defect can be, and plants it at one of them. The
program stays one that XLA accepts wherever that can be known here.
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
from harness.sensitivity.program import BF16, F32, F64, S32, S64, U32, Program, root_of

Edit = Callable[[], None]
Edits = Callable[[Program, Computation, Instruction], Iterator[Edit]]

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
    """One class of defects.

    Attributes:
        name: as in a plan and in a table.
        upstream: an issue that was such a defect.
        edits: what can be done to an instruction, one edit for each way to get it wrong.
    """

    name: str
    upstream: str
    edits: Edits

    def places(self, program: Program) -> list[tuple[Instruction, Edit]]:
        """Where it applies, in the program's order, each with what plants the fault there."""
        return [
            (instruction, edit)
            for computation, instruction in program.instructions()
            for edit in self.edits(program, computation, instruction)
        ]


# --- Collectives


def _dropped(program: Program, _: Computation, one: Instruction) -> Iterator[Edit]:
    if one.opcode not in _COLLECTIVES:
        return
    operands, results = program.operands(one), list(one.shape.tuple_shapes) or [one.shape]
    if [list(o.shape.dimensions) for o in operands] == [list(r.dimensions) for r in results]:
        opcode = "tuple" if one.shape.tuple_shapes else "copy"
        yield partial(make, one, opcode, list(one.operand_ids))


def _merged(_: Program, __: Computation, one: Instruction) -> Iterator[Edit]:
    groups = replica_groups(one) if one.opcode == "all-reduce" else []
    if len(groups) > 1:
        yield partial(_set_groups, one, [[n for group in groups for n in group]])


def _split(_: Program, __: Computation, one: Instruction) -> Iterator[Edit]:
    groups = replica_groups(one) if one.opcode == "all-reduce" else []
    if groups and all(len(group) > 1 for group in groups):
        halves = [(group[: len(group) // 2], group[len(group) // 2 :]) for group in groups]
        yield partial(_set_groups, one, [half for both in halves for half in both])


def _permuted(_: Program, __: Computation, one: Instruction) -> Iterator[Edit]:
    groups = replica_groups(one) if one.opcode in _COLLECTIVES else []
    if len(groups) > 1:
        first, second, *others = groups
        exchanged = [[*first[:-1], second[0]], [first[-1], *second[1:]], *others]
        yield partial(_set_groups, one, exchanged)
    if one.opcode in _ORDERED and groups and len(groups[0]) > 1:
        yield partial(_set_groups, one, [group[::-1] for group in groups])


def _reducer_changed(
    program: Program, _: Computation, one: Instruction, opcodes: Sequence[str]
) -> Iterator[Edit]:
    if one.opcode not in opcodes or len(one.called_computation_ids) != 1:
        return
    (reducer,) = program.called(one)
    root = root_of(reducer)
    if root.opcode in _OTHER_REDUCER and one.shape.element_type:

        def edit() -> None:
            own = program.own_computation(one)
            root_of(own).opcode = _OTHER_REDUCER[root.opcode]

        yield edit


def _reduced_twice(program: Program, own: Computation, one: Instruction) -> Iterator[Edit]:
    if one.opcode != "all-reduce":
        return
    (reducer,) = program.called(one)
    root = root_of(reducer)
    if root.opcode == "add":

        def edit() -> None:
            once = program.move(own, one)
            program.give_own_channel(once)
            one.operand_ids[:] = [part.id for part in _parts(program, own, one, once)]

        yield edit


def _parts(
    program: Program, own: Computation, before: Instruction, whole: Instruction
) -> list[Instruction]:
    """The elements of a tuple; of what is no tuple, itself."""
    if not whole.shape.tuple_shapes:
        return [whole]
    found = []
    for number, operand in enumerate(program.operands(whole)):
        part = program.add(own, before, "get-tuple-element", [whole.id], operand)
        part.tuple_index = number
        found.append(part)
    return found


def _pairs_reversed(_: Program, __: Computation, one: Instruction) -> Iterator[Edit]:
    pairs = [(pair.source, pair.target) for pair in one.source_target_pairs]
    if sorted(pairs) != sorted((target, source) for source, target in pairs):

        def edit() -> None:
            for pair in one.source_target_pairs:
                pair.source, pair.target = pair.target, pair.source

        yield edit


def _pair_left_out(_: Program, __: Computation, one: Instruction) -> Iterator[Edit]:
    for number in range(len(one.source_target_pairs)):
        yield partial(_remove, one.source_target_pairs, number)


def _dimension_changed(program: Program, own: Computation, one: Instruction) -> Iterator[Edit]:
    if one.opcode not in _ORDERED or len(one.operand_ids) != 1 or len(one.dimensions) != 1:
        return
    (operand,) = program.operands(one)
    before, (dimension,) = _dimensions(operand), one.dimensions
    if one.opcode == "all-to-all":
        size = len((replica_groups(one) or [[]])[0])
        for other, extent in enumerate(before):
            if other != dimension and size > 1 and extent and extent % size == 0:
                yield partial(one.dimensions.__setitem__, 0, other)
        return
    after = _dimensions(one)
    if not math.prod(after) or before[dimension] == after[dimension]:
        return
    for other, extent in enumerate(before):
        told = extent * after[dimension]
        between = before[min(dimension, other) : max(dimension, other)]
        if told % before[dimension] or math.prod(between) == 1:  # the same elements
            continue

        def edit(other: int = other, extent: int = told // before[dimension]) -> None:
            moved = program.move(own, one)
            moved.dimensions[:] = [other]
            moved.shape.dimensions[:] = before
            moved.shape.dimensions[other] = extent
            make(one, "reshape", [moved.id])

        yield edit


# --- Shardings


def _sharding_dropped(_: Program, __: Computation, one: Instruction) -> Iterator[Edit]:
    if _divides(one):
        yield partial(one.ClearField, "sharding")
    for number, attribute in enumerate(one.frontend_attributes.map):
        if attribute.key == _SHARDY and '"' in attribute.value:
            yield partial(_lose, one, number)


def _lose(one: Instruction, number: int) -> None:
    """Drop an annotation and, of what is nothing else, the call: GSPMD would ask for its own."""
    _remove(one.frontend_attributes.map, number)
    if one.custom_call_target == "Sharding":
        one.opcode = "reshape"
        one.ClearField("custom_call_target")
        one.ClearField("sharding")


def _replicated(_: Program, __: Computation, one: Instruction) -> Iterator[Edit]:
    if _divides(one):
        yield partial(setattr, one, "sharding", Sharding(type=0).SerializeToString())
    yield from _axes_changed(one, lambda axes: ["{}" for _ in axes])


def _axes_swapped(_: Program, __: Computation, one: Instruction) -> Iterator[Edit]:
    sharding = _divides(one)
    rank = len(one.shape.dimensions)
    if sharding and rank > 1 and len(set(sharding.tile_dimensions[:rank])) > 1:

        def edit() -> None:
            changed = Sharding.FromString(one.sharding)
            changed.tile_dimensions[:rank] = list(changed.tile_dimensions[:rank])[::-1]
            one.sharding = changed.SerializeToString()

        yield edit
    yield from _axes_changed(one, lambda axes: axes[::-1])


def _devices_reversed(_: Program, __: Computation, one: Instruction) -> Iterator[Edit]:
    if sharding := _divides(one):
        devices = devices_of(sharding)

        def edit() -> None:
            changed = Sharding.FromString(one.sharding)
            changed.ClearField("iota_reshape_dims")
            changed.ClearField("iota_transpose_perm")
            changed.tile_devices[:] = devices[::-1]
            one.sharding = changed.SerializeToString()

        yield edit


def _axes_changed(one: Instruction, change: Callable[[list[str]], list[str]]) -> Iterator[Edit]:
    """Edits of a value's sharding in Shardy's words, where ``change`` makes it another one."""

    def changed(match: re.Match[str]) -> str:
        return f"[{', '.join(change(re.findall(r'{[^}]*}', match[1])))}]"

    for attribute in one.frontend_attributes.map:
        value = _AXES.sub(changed, attribute.value) if attribute.key == _SHARDY else ""
        if value and value != attribute.value:
            yield partial(setattr, attribute, "value", value)


def _divides(one: Instruction) -> Sharding | None:
    """How GSPMD divides an instruction's array over devices; None if it does not."""
    if not one.HasField("sharding") or not one.shape.element_type or one.shape.tuple_shapes:
        return None
    if any(attribute.key == _SHARDY for attribute in one.frontend_attributes.map):
        return None  # Shardy reads that alone
    sharding = Sharding.FromString(one.sharding)
    of_array = sharding.tile_dimensions[: len(one.shape.dimensions)]
    return sharding if sharding.type == _OTHER and math.prod(of_array) > 1 else None


_OTHER = 3  # of OpSharding.Type: neither replicated, nor on one device, nor manual


def devices_of(sharding: Sharding) -> list[int]:
    """The device of each tile, the last dimension's tiles beside each other."""
    if sharding.tile_devices:
        return list(sharding.tile_devices)
    grid = np.arange(math.prod(sharding.iota_reshape_dims)).reshape(*sharding.iota_reshape_dims)
    return [int(n) for n in grid.transpose(*sharding.iota_transpose_perm).flatten()]


# --- Arithmetic and data movement


def _shifted(program: Program, own: Computation, one: Instruction) -> Iterator[Edit]:
    if one.opcode == "slice":
        (operand,) = program.operands(one)
        for bounds, extent in zip(one.slice_dimensions, _dimensions(operand), strict=True):
            if bounds.start or bounds.limit < extent:
                yield partial(_shift, bounds, -1 if bounds.start else 1)
    if one.opcode not in ("dynamic-slice", "dynamic-update-slice"):
        return
    whole, *others = program.operands(one)
    starts = others[1:] if one.opcode == "dynamic-update-slice" else others
    part = others[0] if one.opcode == "dynamic-update-slice" else one
    sizes = zip(_dimensions(whole), _dimensions(part), strict=True)
    first = len(one.operand_ids) - len(starts)
    for number, (extent, size) in enumerate(sizes):
        if len(starts) != len(whole.shape.dimensions) or size == extent:
            continue
        start = starts[number]
        if start.shape.element_type not in (S32, S64, U32):
            continue

        def edit(number: int = number, start: Instruction = start) -> None:
            constant = program.constant(own, one, start, 1)
            total = program.add(own, one, "add", [start.id, constant.id], start)
            one.operand_ids[first + number] = total.id

        yield edit


def _shift(bounds: SliceDimension, step: int) -> None:
    bounds.start, bounds.limit = bounds.start + step, bounds.limit + step


def _swapped(_: Program, __: Computation, one: Instruction) -> Iterator[Edit]:
    operands = list(one.operand_ids)
    if one.opcode == "select":
        yield partial(_set_operands, one, [operands[0], operands[2], operands[1]])
    if one.comparison_direction in {"EQ", "NE"}:
        return
    if one.opcode in _NOT_COMMUTATIVE and len(operands) == 2 and operands[0] != operands[1]:
        yield partial(_set_operands, one, operands[::-1])


def _constant_off(_: Program, __: Computation, one: Instruction) -> Iterator[Edit]:
    if one.opcode != "constant" or one.shape.dimensions:
        return
    literal = one.literal
    for values in (literal.s32s, literal.s64s):
        if len(values) == 1:
            yield partial(values.__setitem__, 0, values[0] + (1 if values[0] < 2**30 else -1))
    for floats in (literal.f32s, literal.f64s):
        if len(floats) == 1:
            off = 0.0 if math.isinf(floats[0]) else floats[0] * 1.25 or 1.0
            yield partial(floats.__setitem__, 0, off)


def _narrowed(program: Program, own: Computation, one: Instruction) -> Iterator[Edit]:
    if one.opcode not in _ROUNDED:
        return
    if one.shape.element_type in (F32, F64):

        def edit() -> None:
            moved = program.move(own, one)
            make(one, "convert", [_narrow(program, own, one, moved).id])

        yield edit
    elif one.shape.tuple_shapes:  # of several operands: the first of them is
        first = program.operands(one)[0]

        def edit_first() -> None:
            narrow = _narrow(program, own, one, first)
            one.operand_ids[0] = program.add(own, one, "convert", [narrow.id], first).id

        if first.shape.element_type in (F32, F64):
            yield edit_first


def _narrow(
    program: Program, own: Computation, before: Instruction, wide: Instruction
) -> Instruction:
    narrow = program.add(own, before, "convert", [wide.id], wide)
    narrow.shape.element_type = BF16
    return narrow


def _contraction_swapped(program: Program, _: Computation, one: Instruction) -> Iterator[Edit]:
    if one.opcode != "dot":
        return
    left, right = program.operands(one)
    told = one.dot_dimensions
    sides = (
        (left, told.lhs_contracting, told.lhs_batch),
        (right, told.rhs_contracting, told.rhs_batch),
    )
    for operand, contracting, batch in sides:
        extents = _dimensions(operand)
        for number, extent in enumerate(extents):
            if number in contracting or number in batch or len(contracting) != 1:
                continue
            if extent == extents[contracting[0]] and extent > 1:
                yield partial(contracting.__setitem__, 0, number)


def _comparison_changed(_: Program, __: Computation, one: Instruction) -> Iterator[Edit]:
    if one.comparison_direction:
        other = _OTHER_COMPARISON[one.comparison_direction]
        yield partial(setattr, one, "comparison_direction", other)


def _transposed(program: Program, _: Computation, one: Instruction) -> Iterator[Edit]:
    if one.opcode != "transpose":
        return
    (operand,) = program.operands(one)
    extents = _dimensions(operand)
    order = list(one.dimensions)
    for a in range(len(order)):
        for b in range(a):
            if extents[order[a]] == extents[order[b]] > 1:
                other = list(order)
                other[a], other[b] = other[b], other[a]
                yield partial(one.dimensions.__setitem__, slice(None), other)


def _results_swapped(program: Program, own: Computation, one: Instruction) -> Iterator[Edit]:
    if one.opcode != "tuple" or one.id != own.root_id:
        return
    operands = program.operands(one)
    for number in range(1, len(operands)):
        first, second = operands[number - 1 : number + 1]
        if first.id != second.id and _type(first) == _type(second):
            order = list(one.operand_ids)
            order[number - 1], order[number] = order[number], order[number - 1]
            yield partial(_set_operands, one, order)


def _number_off(program: Program, own: Computation, one: Instruction) -> Iterator[Edit]:
    if one.opcode not in ("partition-id", "replica-id"):
        return

    def edit() -> None:
        moved = program.move(own, one)
        constant = program.constant(own, one, one, 1)
        make(one, "xor", [moved.id, constant.id])

    yield edit


def _remove(values: Any, number: int) -> None:
    del values[number]


def _set_operands(one: Instruction, operands: Sequence[int]) -> None:
    one.operand_ids[:] = operands


def _dimensions(one: Instruction) -> list[int]:
    return list(one.shape.dimensions)


def _type(one: Instruction) -> tuple[int, list[int]]:
    return one.shape.element_type, _dimensions(one)


def _set_groups(one: Instruction, groups: Sequence[Sequence[int]]) -> None:
    field = one.device_list if one.HasField("device_list") else one
    if one.HasField("device_list"):
        one.device_list.ClearField("iota")
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


def planted(told: Mapping[str, Any], serialized: bytes) -> bytes:
    """A module with a fault in it, as ``Fault.text`` says it; raises IndexError for no place."""
    if told["operator"] == STALE:
        return Path(told["folder"], told["other"]).read_bytes()
    program = Program(serialized)
    _, edit = OPERATORS[told["operator"]].places(program)[told["place"]]
    edit()
    return program.serialize()
