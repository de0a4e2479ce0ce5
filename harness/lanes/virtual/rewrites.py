"""HLO that XLA's CPU compiler refuses, as HLO with the same meaning that it has.

Each instruction of these becomes a call of what JAX lowers for the CPU:

- ``all-reduce``, ``reduce-scatter`` and ``reduce`` of integers by ``and``, ``or`` and ``xor``: the
  same over the bits, by minimum, maximum and sum. Groups, channels and partitions stay as they
  are, also for the collective that the SPMD partitioner makes of a ``reduce``.
- ``ragged-all-to-all``: each device sends all of its operand to each device of its group by
  ``all-to-all``, which has the same groups, and takes its parts out of what it receives. A few
  rows at a time: operands of ranks with programs of their own need not have the same size.
- ``collective-broadcast``, as ``jax.lax.pbroadcast`` has: an ``all-to-all`` of the whole operand,
  of which each device takes what the first of its group sent.
- ``ragged-dot``: JAX's own expansion for other platforms than the TPU.
- a custom call of ``AllocateBuffer``, as ``jax.lax.empty`` has: NaN or the largest integer.

A scan, as TorchTPU has for ``cumsum``, becomes a call of the loop that the framework wrote for
compilers that have none. What is sent to the host and received from it becomes calls that the
plugin answers, memory of the host becomes the device's, and pinned buffers become arrays.
Collectives that a custom call starts are done there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from harness.lanes.hlo import Computation, Instruction, Module, Shape
from harness.lanes.replica_groups import replica_groups
from harness.lanes.virtual.host_memory import leave_out_placements
from harness.lanes.virtual.host_transfers import replace_host_transfers
from harness.lanes.virtual.inserted import Inserted, make_call
from harness.lanes.virtual.lowering import SCAN, as_hlo, lower_for_cpu
from harness.lanes.virtual.pinned_buffers import leave_out_pinning
from harness.lanes.virtual.started import config_of, do_at_once, make_collective

# Of PrimitiveType in https://github.com/openxla/xla/blob/main/xla/xla_data.proto.
DTYPES: Mapping[int, np.dtype[Any]] = {
    number: np.dtype(scalar)
    for number, scalar in {
        1: np.bool_,
        2: np.int8,
        3: np.int16,
        4: np.int32,
        5: np.int64,
        6: np.uint8,
        7: np.uint16,
        8: np.uint32,
        9: np.uint64,
        10: np.float16,
        11: np.float32,
        12: np.float64,
        15: np.complex64,
        16: ml_dtypes.bfloat16,
        18: np.complex128,
        19: ml_dtypes.float8_e5m2,
        20: ml_dtypes.float8_e4m3fn,
    }.items()
}

# The reduction of one bit, in a byte, that is the bitwise one. A sum's lowest bit does not mind
# that the byte overflows.
_OF_BITS = {"and": "min", "or": "max", "xor": "add"}

# A custom call of that target stands for the collective until the program has its computation.
_PLACE = "xla_harness_collective"

# Rows of each device that one all-to-all of a ragged one exchanges, the same number everywhere.
_AT_ONCE = 64

Array = Any  # jax.Array, while JAX traces
Meaning = Callable[..., Any]


@dataclass(frozen=True)
class _Rewrite:
    """Replacement of an instruction.

    Attributes:
        name: for the event, as ``all-reduce or``.
        meaning: a function of JAX from the operands to the result.
        collective: what is exchanged by, in the place of each custom call of ``_PLACE``.
        reducer: a function of JAX over two bytes that the collective reduces by, if it does.
    """

    name: str
    meaning: Meaning
    collective: Instruction | None = None
    reducer: str = ""


def rewrite(form: str, program: bytes) -> tuple[bytes, list[str]]:
    """``program`` as a serialised HloModuleProto without what the CPU's compiler lacks.

    Args:
        form: ``hlo`` for a serialised HloModuleProto, ``mlir`` for a StableHLO portable artifact.
        program: what the CPU's compiler has refused.

    Returns:
        The module, and the name of each instruction's rewriting; no name if there is none to
        rewrite.

    Raises:
        ImportError: there is no JAX.
        ValueError: an instruction's form is not known here; the message says which.
    """
    module = Module.FromString(as_hlo(form, program))
    names = ["scan"] if form == "mlir" and SCAN.encode() in program else []
    names += replace_host_transfers(module)
    names += leave_out_placements(module)
    names += leave_out_pinning(module)
    names += do_at_once(module)
    computations = {computation.id: computation for computation in module.computations}
    inserted = Inserted(module)
    for computation in computations.values():
        shapes = {i.id: i.shape for i in computation.instructions}
        for instruction in computation.instructions:
            operands = [shapes[operand] for operand in instruction.operand_ids]
            replacement = _rewrite_of(instruction, operands, computations)
            if replacement is not None:
                make_call(instruction, _insert(replacement, instruction, operands, inserted))
                names.append(replacement.name)
    inserted.finish()
    return module.SerializeToString(), names


def _rewrite_of(
    instruction: Instruction, operands: Sequence[Shape], computations: Mapping[int, Computation]
) -> _Rewrite | None:
    match instruction.opcode:
        case "all-reduce" | "reduce-scatter" | "reduce":
            return _bitwise(instruction, operands, computations)
        case "ragged-all-to-all":
            return _ragged_all_to_all(instruction)
        case "collective-broadcast":
            return _broadcast(instruction)
        case "ragged-dot":
            return _ragged_dot(instruction)
        case "custom-call":
            return _rewrite_of_call(instruction, operands)
    return None


def _rewrite_of_call(instruction: Instruction, operands: Sequence[Shape]) -> _Rewrite | None:
    match instruction.custom_call_target:
        case "AllocateBuffer":
            return _uninitialized(instruction.shape)
        case "all-to-all-start":
            return _all_to_all_start(instruction, operands[0])
    return None


def _insert(
    rewrite: _Rewrite, instruction: Instruction, operands: Sequence[Shape], inserted: Inserted
) -> Computation:
    """Return the computation to call, with its collectives in their places."""
    reducers = []
    if rewrite.reducer:
        reducers = [inserted.add(_reducer(rewrite.reducer), "reducer")[-1].id]
    shapes = [_struct(shape) for shape in operands]
    added = inserted.add(lower_for_cpu(rewrite.meaning, shapes, x64=True), "rewritten")
    for call in (i for c in added for i in c.instructions):
        if call.opcode == "custom-call" and call.custom_call_target == _PLACE:
            assert rewrite.collective is not None
            own = Instruction()
            own.CopyFrom(rewrite.collective)
            own.name, own.id = call.name, call.id
            own.shape.CopyFrom(call.shape)
            own.operand_ids[:] = call.operand_ids
            own.control_predecessor_ids[:] = []
            own.called_computation_ids[:] = reducers
            if instruction.HasField("sharding") and call.shape.tuple_shapes:
                own.ClearField("sharding")  # that of one array, or of another tuple
            call.CopyFrom(own)
    return added[-1]


def _struct(shape: Shape) -> Any:
    import jax

    if shape.element_type not in DTYPES:
        raise ValueError(f"element type {shape.element_type} of xla_data.proto is not known here")
    return jax.ShapeDtypeStruct(tuple(shape.dimensions), DTYPES[shape.element_type])


def _exchange(values: Sequence[Array], shapes: Sequence[tuple[int, ...]]) -> Sequence[Array]:
    """Mark the place of the collective, which turns ``values`` into results of ``shapes``."""
    import jax

    results = [
        jax.ShapeDtypeStruct(shape, value.dtype)
        for value, shape in zip(values, shapes, strict=False)
    ]
    of = results[0] if len(results) == 1 else results
    if jax.__version_info__ >= (0, 4, 38):
        exchanged = jax.ffi.ffi_call(_PLACE, of)(*values)
    else:
        from jax.extend import ffi

        exchanged = ffi.ffi_call(_PLACE, of, *values)
    return [exchanged] if len(results) == 1 else list(exchanged)


# --- Memory that nothing was written to


def _uninitialized(shape: Shape) -> _Rewrite:
    """Return a rewrite that fills a buffer as JAX's TPU interpret mode does, to expose reads."""

    def meaning() -> Array:
        import jax.numpy as jnp

        of = _struct(shape)
        if jnp.issubdtype(of.dtype, jnp.inexact):
            return jnp.full(of.shape, np.nan, of.dtype)
        return jnp.full(of.shape, True if of.dtype == bool else jnp.iinfo(of.dtype).max, of.dtype)

    return _Rewrite("allocation of a buffer", meaning)


# --- Bitwise reductions


def _bitwise(
    instruction: Instruction, operands: Sequence[Shape], computations: Mapping[int, Computation]
) -> _Rewrite | None:
    reducer = _operation(computations[instruction.called_computation_ids[0]])
    of_booleans = DTYPES.get(operands[0].element_type) == np.bool_
    if reducer not in _OF_BITS or (of_booleans and reducer != "xor"):
        return None
    if instruction.opcode == "reduce":
        return _Rewrite(f"reduce {reducer}", _reduction(reducer, tuple(instruction.dimensions)))
    results = list(instruction.shape.tuple_shapes) or [instruction.shape]
    shapes = [tuple(shape.dimensions) for shape in results]

    def meaning(*arrays: Array) -> Any:
        bits = [_bits(array) for array in arrays]
        width = [array.shape[-1] for array in bits]
        reduced = _exchange(bits, [(*s, n) for s, n in zip(shapes, width, strict=False)])
        packed = [_packed(part, x.dtype) for part, x in zip(reduced, arrays, strict=False)]
        return tuple(packed) if instruction.shape.tuple_shapes else packed[0]

    name = f"{instruction.opcode} {reducer}"
    return _Rewrite(name, meaning, instruction, _OF_BITS[reducer])


def _reduction(reducer: str, axes: tuple[int, ...]) -> Meaning:
    def meaning(array: Array, start: Array) -> Array:
        from jax import lax

        identity = 255 if reducer == "and" else 0
        over = getattr(lax, _OF_BITS[reducer])
        bits = lax.reduce(_bits(array), np.uint8(identity), over, axes)
        return getattr(lax, f"bitwise_{reducer}")(_packed(bits, array.dtype), start)

    return meaning


def _operation(computation: Computation) -> str:
    """Return the opcode that combines a reducer's two parameters; "" if it is no single one."""
    opcodes = {i.id: i.opcode for i in computation.instructions}
    root = next(i for i in computation.instructions if i.id == computation.root_id)
    operands = [opcodes[operand] for operand in root.operand_ids]
    return root.opcode if operands == ["parameter"] * 2 else ""


@cache
def _reducer(name: str) -> bytes:
    import jax
    from jax import lax

    byte = jax.ShapeDtypeStruct((), np.uint8)
    return lower_for_cpu(getattr(lax, name), [byte, byte], x64=True)


def _bits(array: Array) -> Array:
    """Return each number's bits, each in a byte of a new last axis, the lowest first."""
    from jax import lax

    if array.dtype == np.bool_:
        return lax.expand_dims(array.astype(np.uint8), [array.ndim])
    width = array.dtype.itemsize * 8
    unsigned = np.dtype(f"uint{width}")
    places = np.arange(width, dtype=unsigned)
    numbers = lax.expand_dims(lax.bitcast_convert_type(array, unsigned), [array.ndim])
    return ((numbers >> places) & np.ones((), unsigned)).astype(np.uint8)


def _packed(bits: Array, dtype: np.dtype[Any]) -> Array:
    from jax import lax

    bits = bits & np.uint8(1)
    if dtype == np.bool_:
        return bits[..., 0].astype(np.bool_)
    unsigned = np.dtype(f"uint{dtype.itemsize * 8}")
    places = np.arange(bits.shape[-1], dtype=unsigned)
    numbers = (bits.astype(unsigned) << places).sum(-1, dtype=unsigned)
    return lax.bitcast_convert_type(numbers, dtype)


# --- All-to-all from one dimension to another


def _all_to_all_start(instruction: Instruction, operand: Shape) -> _Rewrite:
    config = config_of(instruction)
    split, concat = config["split_dimension"], config["concat_dimension"]
    devices = operand.dimensions[split] // instruction.shape.dimensions[split]
    collective = Instruction()
    collective.CopyFrom(instruction)
    make_collective(collective, config)
    collective.dimensions[:] = [0]

    def meaning(array: Array) -> Array:
        import jax.numpy as jnp

        parts = jnp.stack(jnp.split(array, devices, split))
        (received,) = _exchange([parts], [parts.shape])
        return jnp.concatenate(list(received), concat)

    return _Rewrite("asynchronous collective", meaning, collective)


# --- Ragged all-to-all


def _ragged_all_to_all(instruction: Instruction) -> _Rewrite:
    devices = _group_size(instruction)

    def meaning(
        given: Array, output: Array, starts: Array, sizes: Array, places: Array, _: Array
    ) -> Array:
        import jax.numpy as jnp
        from jax import lax

        if 0 in given.shape[1:]:
            return output
        (received,) = _exchange([parts := jnp.stack([starts, sizes, places], 1)], [parts.shape])
        own = np.full(devices, len(given), np.int64)
        (counts,) = _exchange([jnp.asarray(own)], [own.shape])
        end = jnp.max(counts)
        beyond = max(_AT_ONCE, -len(given) % _AT_ONCE + len(given)) - len(given)
        padded = jnp.pad(given, [(0, beyond), *[(0, 0)] * (given.ndim - 1)])

        def some(state: tuple[Array, Array]) -> tuple[Array, Array]:
            first, result = state  # past the own rows these are others, which nobody is to take
            rows = lax.dynamic_slice_in_dim(padded, first, _AT_ONCE)
            everywhere = jnp.broadcast_to(rows, (devices, *rows.shape))
            (rows,) = _exchange([everywhere], [everywhere.shape])
            return first + _AT_ONCE, _placed(rows, first, received, result)

        start = jnp.zeros((), end.dtype)
        result: Array = lax.while_loop(lambda state: state[0] < end, some, (start, output))[1]
        return result

    return _Rewrite("ragged-all-to-all", meaning, _all_to_all(instruction))


def _placed(rows: Array, first: Array, received: Array, output: Array) -> Array:
    """Write into ``output`` what is in some rows of each device for this one.

    Args:
        rows: of each device of the group: [devices, rows, ...].
        first: the number of the first of these rows in each device's operand.
        received: of each part that is for this device: its start there, its number of rows, and its
            place here: [devices * parts of each, 3].
        output: [rows here, ...].
    """
    import jax.numpy as jnp

    starts, sizes, places = (received[:, n].astype(np.int64) for n in range(3))
    devices, count = rows.shape[:2]
    device = np.arange(len(received)) // (len(received) // devices)
    within = np.arange(len(output))[:, None] - places  # of row and part
    at = starts + within - first
    taken = (within >= 0) & (within < sizes) & (at >= 0) & (at < count)
    source = jnp.max(jnp.where(taken, device * count + at, -1), 1)
    moved = jnp.take(rows.reshape(devices * count, *rows.shape[2:]), source, 0, mode="clip")
    is_written = (source >= 0).reshape(-1, *[1] * (output.ndim - 1))
    return jnp.where(is_written, moved, output)


def _all_to_all(instruction: Instruction) -> Instruction:
    """Return an exchange between the devices of the same groups."""
    collective = Instruction()
    collective.CopyFrom(instruction)
    collective.opcode = "all-to-all"
    collective.dimensions[:] = [0]
    return collective


def _group_size(instruction: Instruction) -> int:
    if groups := replica_groups(instruction):
        return len(groups[0])
    raise ValueError(f"{instruction.opcode} without groups")


# --- Broadcast


def _broadcast(instruction: Instruction) -> _Rewrite:
    devices = _group_size(instruction)

    def meaning(array: Array) -> Array:
        import jax.numpy as jnp

        shape = (devices, *array.shape)
        (received,) = _exchange([jnp.broadcast_to(array, shape)], [shape])
        return received[0]

    return _Rewrite("collective-broadcast", meaning, _all_to_all(instruction))


# --- Ragged dot


def _ragged_dot(instruction: Instruction) -> _Rewrite:
    dimensions = instruction.ragged_dot_dimensions
    dot = dimensions.dot
    result = DTYPES[instruction.shape.element_type]

    def meaning(lhs: Array, rhs: Array, group_sizes: Array) -> Array:
        from jax import lax

        contracting = tuple(dot.lhs_contracting), tuple(dot.rhs_contracting)
        batch = tuple(dot.lhs_batch), tuple(dot.rhs_batch)
        numbers = lax.RaggedDotDimensionNumbers(
            (contracting, batch), tuple(dimensions.lhs_ragged), tuple(dimensions.rhs_group)
        )
        return lax.ragged_dot_general(lhs, rhs, group_sizes, numbers, preferred_element_type=result)

    return _Rewrite("ragged-dot", meaning)
