"""Replace a program's transfers to and from its host by calls that the plugin answers.

A TPU's callbacks of JAX are HLO's ``send`` and ``recv``, which XLA's CPU compiler lacks. Whoever
executes the program gives PJRT a function for each channel, which
``plugin/host/host_transfers.c`` calls.
"""

from __future__ import annotations

import math

from harness.lanes.element_bits import ELEMENT_BITS
from harness.lanes.hlo import Instruction, Module, Shape, Sharding
from harness.lanes.virtual.inserted import leave_out, make

_TOKEN, _TUPLE = 17, 13  # of PrimitiveType in xla/xla_data.proto
_OF_TUPLE = 2  # of OpSharding.Type there
_TYPED_FFI = 4  # of CustomCallApiVersion in xla/service/hlo.proto
# JAX's on a CPU: Shardy keeps the shardings of tokens of no other custom call.
TARGET = "xla_ffi_python_cpu_callback"


def replace_host_transfers(program: Module) -> list[str]:
    """Make each transfer between a device and its host a custom call, in place.

    Args:
        program: is changed.

    Returns:
        The name of each transfer's kind.

    Raises:
        ValueError: the size of a transfer is not known.
    """
    names = []
    for computation in program.computations:
        transfers = [i for i in computation.instructions if i.is_host_transfer]
        same: dict[int, int] = {}  # an instruction's value is that of another one
        for transfer in transfers:
            match transfer.opcode:
                case "send":
                    _make_send(transfer, transfer.shape.tuple_shapes[0])
                    names.append("send to the host")
                case "recv-done":
                    _make_receive(transfer)
                    names.append("receive from the host")
                case "send-done":
                    make(transfer, "get-tuple-element", transfer.operand_ids)
                    transfer.tuple_index = 0
                case "recv":
                    same[transfer.id] = transfer.operand_ids[0]
        if same:
            leave_out(computation, same)
    return names


def _make_send(instruction: Instruction, sent: Shape) -> None:
    operand, token = Shape(), Shape(element_type=_TOKEN)
    operand.CopyFrom(sent)
    # A transpose only changes the layout of its operand here, and the host reads row by row.
    operand.layout.minor_to_major[:] = range(len(sent.dimensions) - 1, -1, -1)
    sharding = Sharding.FromString(instruction.sharding)
    _make_call(instruction, operand)
    instruction.shape.CopyFrom(Shape(element_type=_TUPLE, tuple_shapes=[token]))
    instruction.operand_shapes_with_layout.extend([operand, token])
    if sharding.type == _OF_TUPLE:
        del sharding.tuple_shardings[1:]
        instruction.sharding = sharding.SerializeToString()


def _make_receive(instruction: Instruction) -> None:
    received, token = instruction.shape.tuple_shapes
    _make_call(instruction, received)
    instruction.operand_shapes_with_layout.append(token)


def _make_call(instruction: Instruction, of: Shape) -> None:
    if of.element_type not in ELEMENT_BITS:
        raise ValueError(
            f"{instruction.opcode} of element type {of.element_type} is not known here"
        )
    bits, count = ELEMENT_BITS[of.element_type], math.prod(of.dimensions)
    numbers = {"channel": instruction.channel_id, "count": count, "bits": bits}
    config = ", ".join(f"{name} = {number} : ui64" for name, number in numbers.items())
    attributes = list(instruction.frontend_attributes.map)
    make(instruction, "custom-call", instruction.operand_ids)
    instruction.custom_call_target = TARGET
    instruction.backend_config = f"{{{config}}}".encode()
    instruction.custom_call_api_version = _TYPED_FFI
    instruction.custom_call_has_side_effect = True
    instruction.constrain_layout = True  # row-major, as the host reads it
    instruction.frontend_attributes.map.extend(attributes)
