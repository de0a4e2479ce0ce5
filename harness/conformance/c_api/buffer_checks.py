"""Buffers: copied from and to the host, described, deleted, and moved."""

from __future__ import annotations

import ctypes
import struct
import time
from collections.abc import Callable

from harness.conformance.c_api.api import int64s
from harness.conformance.c_api.client import SECONDS, Client, floats
from harness.conformance.plugin_check import (
    NotMeasurableError,
    UnsupportedError,
    check,
    checks,
    expect,
)

_SIX = [1, 2, 3, 4, 5, 6]
_TYPES = {  # bytes of an element
    "PRED": 1,
    "S8": 1,
    "S16": 2,
    "S32": 4,
    "S64": 8,
    "U8": 1,
    "U16": 2,
    "U32": 4,
    "U64": 8,
    "F16": 2,
    "F32": 4,
    "F64": 8,
    "BF16": 2,
    "C64": 8,
    "C128": 16,
    "F8E5M2": 1,
    "F8E4M3FN": 1,
    "F8E4M3B11FNUZ": 1,
    "F8E5M2FNUZ": 1,
    "F8E4M3FNUZ": 1,
    "F8E4M3": 1,
    "F8E3M4": 1,
    "F8E8M0FNU": 1,
    "S4": 1,
    "U4": 1,
    "S2": 1,
    "U2": 1,
    "F4E2M1FN": 1,
}
_MUST = frozenset({"PRED", "S32", "F32"})  # without them no framework starts
_REFUSED = frozenset({3, 12})  # INVALID_ARGUMENT, UNIMPLEMENTED


@checks({name: (name, size) for name, size in _TYPES.items()})
def round_trip(client: Client, kind: str, size: int) -> None:
    """Copy 24 elements to the device and back, bit for bit."""
    most = {"S4": 16, "U4": 16, "F4E2M1FN": 16, "S2": 4, "U2": 4, "PRED": 2}.get(kind, 256)
    data = bytes((7 * n + 3) % most for n in range(24 * size))
    request = client.copy_of(data, (4, 6), kind)
    error = client.api.refusal("PJRT_Client_BufferFromHostBuffer", request)
    if error is not None and error.code in _REFUSED and kind not in _MUST:
        raise UnsupportedError(error.message)
    if error is not None:
        raise error
    if request.done_with_host_buffer:
        client.settle(request.done_with_host_buffer)
    back = client.content(request.buffer)
    if len(back) * 2 == len(data) or len(back) * 4 == len(data):
        raise NotMeasurableError(f"elements of {kind} come back packed")
    # A sign that fills up the byte of a smaller number is none of its bits.
    back = bytes(byte % most if most < 256 else byte for byte in back)
    expect(back == data, f"{data[:8].hex()}… came back as {back[:8].hex()}…")
    it = client.api.call("PJRT_Buffer_ElementType", buffer=request.buffer)
    expected = getattr(client.api.abi, f"PJRT_Buffer_Type_{kind}")
    expect(it.type == expected, f"the type of the buffer is number {it.type}, expected {expected}")


@checks(
    {
        "scalar": ((),),
        "empty": ((0,),),
        "empty_of_two": ((3, 0),),
        "one": ((1,),),
        "uneven": ((3, 5, 7),),
        "many": ((1, 2, 1, 3, 1, 2),),
    }
)
def shape(client: Client, dims: tuple[int, ...]) -> None:
    """Keep the shape and the numbers of a buffer."""
    count = 1
    for size in dims:
        count *= size
    data = floats(range(count))
    buffer = client.from_host(data, dims).buffer
    expect(buffer, "PJRT_Client_BufferFromHostBuffer: buffer is null")
    expect(client.content(buffer) == data, "the numbers have changed")
    it = client.api.call("PJRT_Buffer_Dimensions", buffer=buffer)
    sizes = client.api.integers(it.dims, it.num_dims, "dims")
    expect(sizes == list(dims), f"its dimensions are {sizes}, expected {list(dims)}")
    it = client.api.call("PJRT_Buffer_OnDeviceSizeInBytes", buffer=buffer)
    size = it.on_device_size_in_bytes
    expect(size >= len(data), f"it has {size} bytes on the device, and {len(data)} on the host")


@checks({"transposed": ((4, 8), 0), "padded": ((16, 4), 0), "backwards": ((-12, 4), 12)})
def strides(client: Client, steps: tuple[int, ...], first: int) -> None:
    """Copy an array from the host whose elements are not side by side."""
    source = ctypes.create_string_buffer(struct.pack("=12f", *range(12)))
    # Two rows of three numbers each, of which steps says where they are.
    values = [(first + i * steps[0] + j * steps[1]) // 4 for i in range(2) for j in range(3)]
    request = client.copy_of(source, (2, 3), byte_strides=int64s(steps), num_byte_strides=2)
    request.data += first
    error = client.api.refusal("PJRT_Client_BufferFromHostBuffer", request)
    if error is not None and error.code in _REFUSED:
        raise UnsupportedError(error.message)
    if error is not None:
        raise error
    actual = client.values(request.buffer)
    expect(actual == values, f"it has {actual}, expected {values}")


@check
def source_changes_after_the_call(client: Client) -> None:
    """Keep a buffer's numbers though its source changes right after the call, as it may."""
    for count in (4, 1 << 16):
        source = ctypes.create_string_buffer(floats([1.5] * count))
        request = client.api.finish(
            "PJRT_Client_BufferFromHostBuffer", client.copy_of(source, (count,))
        )
        ctypes.memset(source, 0, 4 * count)
        expect(client.values(request.buffer) == [1.5] * count, "the buffer changed with its source")


@checks(
    {
        "until_transfer_completes": ("kImmutableUntilTransferCompletes",),
        "zero_copy": ("kImmutableZeroCopy",),
        "mutable_zero_copy": ("kMutableZeroCopy",),
    }
)
def source_is_released(client: Client, semantics: str) -> None:
    """Say when a buffer's source may change, at the latest when the buffer is freed."""
    value = getattr(client.api.abi, f"PJRT_HostBufferSemantics_{semantics}")
    source = ctypes.create_string_buffer(floats(_SIX))
    request = client.copy_of(source, (6,), host_buffer_semantics=value)
    client.api.finish("PJRT_Client_BufferFromHostBuffer", request)
    expect(client.values(request.buffer) == _SIX, "the numbers have changed")
    done = client.owned(request.done_with_host_buffer, "done_with_host_buffer")
    client.api.call("PJRT_Buffer_Destroy", buffer=request.buffer)
    client.settle(done)


@check
def element_type(client: Client) -> None:
    """State the type of a buffer's elements."""
    it = client.api.call("PJRT_Buffer_ElementType", buffer=client.buffer())
    expect(it.type == client.api.abi.PJRT_Buffer_Type_F32, f"32-bit floats are of type {it.type}")


@check
def no_dynamic_dimensions(client: Client) -> None:
    """Give a buffer no dynamic dimension and no padding where none was asked for."""
    buffer = client.buffer(_SIX, (2, 3))
    it = client.api.call("PJRT_Buffer_DynamicDimensionIndices", buffer=buffer)
    expect(it.num_dynamic_dims == 0, f"{it.num_dynamic_dims} dimensions are dynamic")
    it = client.api.call("PJRT_Buffer_UnpaddedDimensions", buffer=buffer)
    sizes = client.api.integers(it.unpadded_dims, it.num_dims, "dims")
    expect(sizes == [2, 3], f"its dimensions without padding are {sizes}")


@check
def placed(client: Client) -> None:
    """Put a buffer on the device that was named, in its default memory."""
    for device in client.addressable:
        it = client.from_host(floats(_SIX), (6,), device=device)
        own = client.api.call("PJRT_Buffer_Device", buffer=it.buffer).device
        expect(own == device, f"it was put on device {client.device_id(own)}")
        memory = client.api.call("PJRT_Buffer_Memory", buffer=it.buffer).memory
        default = client.api.call("PJRT_Device_DefaultMemory", device=device).memory
        expect(memory == default, "it is not in the device's default memory")


@check
def placed_in_memory(client: Client) -> None:
    """Put a buffer into the memory that was named, where no device is."""
    for memory in client.memories(client.device):
        it = client.from_host(floats(_SIX), (6,), memory=memory, device=None)
        own = client.api.call("PJRT_Buffer_Memory", buffer=it.buffer).memory
        expect(own == memory, f"in {client.kind(memory)}: it was put into {client.kind(own)}")
        expect(client.values(it.buffer) == _SIX, f"{client.kind(memory)}: the numbers changed")


@check
def on_cpu(client: Client) -> None:
    """Say whether a buffer is on a CPU."""
    client.api.call("PJRT_Buffer_IsOnCpu", buffer=client.buffer())


@check
def pointer(client: Client) -> None:
    """Give a held buffer's address, at which the CPU finds its numbers if it is on the CPU."""
    buffer = client.buffer(_SIX)
    client.api.call("PJRT_Buffer_IncreaseExternalReferenceCount", buffer=buffer)
    it = client.api.call("PJRT_Buffer_OpaqueDeviceMemoryDataPointer", buffer=buffer)
    expect(it.device_memory_ptr, "the address of a buffer's memory is null")
    if client.api.call("PJRT_Buffer_IsOnCpu", buffer=buffer).is_on_cpu:
        data = ctypes.string_at(it.device_memory_ptr, 24)
        expect(data == floats(_SIX), "what is at its address are not its numbers")
    client.api.call("PJRT_Buffer_DecreaseExternalReferenceCount", buffer=buffer)


@check
def unsafe_pointer(client: Client) -> None:
    """Give two buffers different addresses."""
    first, other = (
        client.api.call("PJRT_Buffer_UnsafePointer", buffer=client.buffer()).buffer_pointer
        for _ in range(2)
    )
    expect(first and other, "the address of a buffer is null")
    expect(first != other, "two buffers have one address")


@check
def released_too_often(client: Client) -> None:
    """Refuse to release a buffer that nobody holds."""
    it = client.api.arguments("PJRT_Buffer_DecreaseExternalReferenceCount", buffer=client.buffer())
    error = client.api.refusal("PJRT_Buffer_DecreaseExternalReferenceCount", it)
    expect(error is not None, "a buffer was released that nobody holds")


@check
def size_is_asked_for(client: Client) -> None:
    """Say how many bytes the host needs for a buffer."""
    it = client.api.call("PJRT_Buffer_ToHostBuffer", src=client.buffer(_SIX))
    expect(it.dst_size == 24, f"six 32-bit numbers need {it.dst_size} bytes")


@check
def too_small_for_it(client: Client) -> None:
    """Refuse to copy a buffer to memory of the host that is too small."""
    memory = ctypes.create_string_buffer(b"\x55" * 24, 24)
    it = client.api.arguments(
        "PJRT_Buffer_ToHostBuffer", src=client.buffer(_SIX), dst=memory, dst_size=8
    )
    error = client.api.refusal("PJRT_Buffer_ToHostBuffer", it)
    if error is None and it.event:
        try:
            client.settle(it.event)
        except Exception:
            return
    expect(error is not None, "24 bytes were copied to 8")
    expect(memory.raw[8:] == b"\x55" * 16, "what is behind the memory was written to")


@check
def other_layout_on_host(client: Client) -> None:
    """Copy a buffer to the host in the order of dimensions that the host asks for."""
    data = client.content(client.buffer(_SIX, (2, 3)), client.tiled([0, 1]))
    actual = list(struct.unpack("=6f", data))
    expect(actual == [1, 4, 2, 5, 3, 6], f"column by column it is {actual}")


@check
def part_of_it(client: Client) -> None:
    """Copy a part of a buffer's raw bytes."""
    it = client.api.call("PJRT_Buffer_OnDeviceSizeInBytes", buffer=(buffer := client.buffer(_SIX)))
    if it.on_device_size_in_bytes != 24:
        raise NotMeasurableError("the device stores other bytes than the host")
    memory = ctypes.create_string_buffer(8)
    it = client.api.call(
        "PJRT_Buffer_CopyRawToHost", buffer=buffer, dst=memory, offset=8, transfer_size=8
    )
    client.settle(it.event)
    expect(memory.raw == floats([3, 4]), f"bytes 8 to 15 are {memory.raw.hex()}")


@check
def part_beyond_it(client: Client) -> None:
    """Refuse to copy raw bytes that the buffer does not have."""
    memory = ctypes.create_string_buffer(64)
    it = client.api.arguments(
        "PJRT_Buffer_CopyRawToHost",
        buffer=client.buffer(_SIX),
        dst=memory,
        offset=1 << 20,
        transfer_size=64,
    )
    client.expect_refusal("PJRT_Buffer_CopyRawToHost", it, "bytes beyond a buffer were copied")


@check
def deleted(client: Client) -> None:
    """Call a buffer deleted once it was, and not before."""
    buffer = client.buffer()
    expect(not client.is_deleted(buffer), "a buffer is deleted that nobody deleted")
    client.api.call("PJRT_Buffer_Delete", buffer=buffer)
    expect(client.is_deleted(buffer), "a buffer that was deleted is not")


@check
def deleted_twice(client: Client) -> None:
    """Allow a buffer to be deleted twice, or refuse it."""
    buffer = client.buffer()
    for _ in range(2):
        client.api.refusal(
            "PJRT_Buffer_Delete", client.api.arguments("PJRT_Buffer_Delete", buffer=buffer)
        )
    expect(client.is_deleted(buffer), "a buffer that was deleted twice is not")
    client.api.call("PJRT_Buffer_Destroy", buffer=buffer)


@check
def destroy_nothing(client: Client) -> None:
    """Accept null where a buffer is destroyed."""
    client.initialize()
    client.api.call("PJRT_Buffer_Destroy", buffer=None)


@check
def read_after_deletion(client: Client) -> None:
    """Refuse to copy a deleted buffer to the host."""
    buffer, memory = client.buffer(_SIX), ctypes.create_string_buffer(24)
    client.api.call("PJRT_Buffer_Delete", buffer=buffer)
    it = client.api.arguments("PJRT_Buffer_ToHostBuffer", src=buffer, dst=memory, dst_size=24)
    client.expect_refusal("PJRT_Buffer_ToHostBuffer", it, "a deleted buffer was read")


@check
def deleted_while_it_is_read(client: Client) -> None:
    """End a copy to the host that began before the buffer was deleted."""
    count = 1 << 20
    buffer, memory = client.buffer([2.5] * count), ctypes.create_string_buffer(4 * count)
    it = client.api.call("PJRT_Buffer_ToHostBuffer", src=buffer, dst=memory, dst_size=4 * count)
    client.api.call("PJRT_Buffer_Delete", buffer=buffer)
    client.settle(it.event)
    expect(memory.raw == floats([2.5] * count), "what was read has changed")


@check
def event_from_before(client: Client) -> None:
    """Keep the event of a buffer without an error if it is older than the deletion."""
    buffer = client.buffer()
    it = client.api.call("PJRT_Buffer_ReadyEvent", buffer=buffer)
    client.api.call("PJRT_Buffer_Delete", buffer=buffer)
    client.settle(it.event)


@check
def ready(client: Client) -> None:
    """Have the event of a buffer ready at some time."""
    it = client.api.call("PJRT_Buffer_ReadyEvent", buffer=client.buffer())
    client.settle(it.event)


@check
def to_another_device(client: Client) -> None:
    """Copy a buffer to another device."""
    _, other = client.two_devices()
    it = client.api.call("PJRT_Buffer_CopyToDevice", buffer=client.buffer(_SIX), dst_device=other)
    copy = client.owned(it.dst_buffer, "PJRT_Buffer_CopyToDevice: dst_buffer")
    own = client.api.call("PJRT_Buffer_Device", buffer=copy).device
    expect(own == other, f"the copy is on device {client.device_id(own)}")
    expect(client.values(copy) == _SIX, "the copy has other numbers")


@check
def to_another_memory(client: Client) -> None:
    """Copy a buffer to each memory of its device and back."""
    others = [memory for memory in client.memories(client.device) if memory != client.memory]
    if not others:
        raise NotMeasurableError("the device has one memory")
    for memory in others:
        it = client.api.call(
            "PJRT_Buffer_CopyToMemory", buffer=client.buffer(_SIX), dst_memory=memory
        )
        copy = client.owned(it.dst_buffer, "PJRT_Buffer_CopyToMemory: dst_buffer")
        own = client.api.call("PJRT_Buffer_Memory", buffer=copy).memory
        expect(own == memory, f"to {client.kind(memory)}: the copy is in {client.kind(own)}")
        expect(client.values(copy) == _SIX, f"in {client.kind(memory)} are other numbers")
        back = client.api.call("PJRT_Buffer_CopyToMemory", buffer=copy, dst_memory=client.memory)
        expect(client.values(back.dst_buffer) == _SIX, f"from {client.kind(memory)}: other numbers")


@check
def uninitialized(client: Client) -> None:
    """Make a buffer of a shape without any numbers."""
    it = client.api.call(
        "PJRT_Client_CreateUninitializedBuffer",
        client=client.handle,
        shape_dims=int64s((2, 3)),
        shape_num_dims=2,
        shape_element_type=client.api.abi.PJRT_Buffer_Type_F32,
        device=client.device,
        memory=client.memory,
    )
    buffer = client.owned(it.buffer, "PJRT_Client_CreateUninitializedBuffer: buffer")
    dims = client.api.call("PJRT_Buffer_Dimensions", buffer=buffer)
    sizes = client.api.integers(dims.dims, dims.num_dims, "dims")
    expect(sizes == [2, 3], f"its dimensions are {sizes}")
    expect(len(client.content(buffer)) == 24, "it has another size than its shape")


@check
def of_an_error(client: Client) -> None:
    """Make a buffer of an error, and tell it to whoever reads the buffer."""
    it = client.api.call(
        "PJRT_Client_CreateErrorBuffer",
        client=client.handle,
        error_code=13,
        error_message=b"planted by the caller",
        shape_dims=int64s((6,)),
        shape_num_dims=1,
        shape_element_type=client.api.abi.PJRT_Buffer_Type_F32,
        memory=client.memory,
    )
    buffer = client.owned(it.buffer, "PJRT_Client_CreateErrorBuffer: buffer")
    memory = ctypes.create_string_buffer(24)
    request = client.api.arguments("PJRT_Buffer_ToHostBuffer", src=buffer, dst=memory, dst_size=24)
    client.expect_refusal("PJRT_Buffer_ToHostBuffer", request, "the buffer of an error was read")


@check
def view_of_memory(client: Client) -> None:
    """View memory that is on the device already, and say when the view ends."""
    source, ended = client.buffer(_SIX), list[int]()
    client.api.call("PJRT_Buffer_IncreaseExternalReferenceCount", buffer=source)
    it = client.api.call("PJRT_Buffer_OpaqueDeviceMemoryDataPointer", buffer=source)
    called = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(lambda *_: ended.append(1))
    request = client.api.arguments(
        "PJRT_Client_CreateViewOfDeviceBuffer",
        client=client.handle,
        device_buffer_ptr=it.device_memory_ptr,
        dims=int64s((6,)),
        num_dims=1,
        element_type=client.api.abi.PJRT_Buffer_Type_F32,
        layout=client.tiled([0]),
        device=client.device,
        memory=client.memory,
    )
    request.on_delete_callback = ctypes.cast(called, ctypes.c_void_p).value
    client.api.finish("PJRT_Client_CreateViewOfDeviceBuffer", request)
    view = client.owned(request.buffer, "PJRT_Client_CreateViewOfDeviceBuffer: buffer")
    expect(client.values(view) == _SIX, "the view has other numbers")
    client.api.call("PJRT_Buffer_Destroy", buffer=view)
    _expect_soon(lambda: bool(ended), "on_delete_callback was not called")


def _expect_soon(condition: Callable[[], bool], otherwise: str) -> None:
    end = time.monotonic() + SECONDS
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    expect(condition(), f"{otherwise} within {SECONDS:.0f} s")


@check
def bitcast(client: Client) -> None:
    """View a buffer's bits as numbers of another type."""
    request = client.api.arguments(
        "PJRT_Buffer_Bitcast",
        buffer=client.buffer(_SIX),
        element_type=client.api.abi.PJRT_Buffer_Type_U32,
        dims=int64s((6,)),
        num_dims=1,
    )
    client.api.finish("PJRT_Buffer_Bitcast", request)
    other = client.owned(request.out_buffer, "PJRT_Buffer_Bitcast: out_buffer")
    it = client.api.call("PJRT_Buffer_ElementType", buffer=other)
    expect(it.type == client.api.abi.PJRT_Buffer_Type_U32, f"its type is number {it.type}")
    expect(client.content(other) == floats(_SIX), "its bits have changed")


@check
def fulfilled_alias(client: Client) -> None:
    """Make a buffer that stands for one which comes later."""
    it = client.api.call(
        "PJRT_Client_CreateAliasBuffer",
        client=client.handle,
        memory=client.memory,
        shape_dims=int64s((6,)),
        shape_num_dims=1,
        shape_element_type=client.api.abi.PJRT_Buffer_Type_F32,
        shape_layout=client.tiled([0]),
    )
    alias = client.owned(it.alias_buffer, "PJRT_Client_CreateAliasBuffer: alias_buffer")
    client.api.call(
        "PJRT_Client_FulfillAliasBuffer",
        client=client.handle,
        buffer=client.buffer(_SIX),
        status_code=0,
        fulfill_alias_buffer_cb=it.fulfill_alias_buffer_cb,
    )
    expect(client.values(alias) == _SIX, "it has other numbers than the buffer it stands for")


@check
def same_memory_is_refused_or_copied(client: Client) -> None:
    """Refuse a copy to the memory that the buffer is in, or make one that has its numbers."""
    request = client.api.arguments(
        "PJRT_Buffer_CopyToMemory", buffer=(own := client.buffer(_SIX)), dst_memory=client.memory
    )
    if client.api.refusal("PJRT_Buffer_CopyToMemory", request) is None:
        copy = client.owned(request.dst_buffer, "PJRT_Buffer_CopyToMemory: dst_buffer")
        expect(copy != own, "the copy is the buffer itself")
        expect(client.values(copy) == _SIX, "the copy has other numbers")


@check
def many(client: Client) -> None:
    """Make, read and free two thousand buffers."""
    for number in range(2000):
        buffer = client.buffer([float(number)])
        expect(client.values(buffer) == [number], f"buffer {number} has {client.values(buffer)}")
        client.api.call("PJRT_Buffer_Destroy", buffer=buffer)


@check
def layout(client: Client) -> None:
    """State the order of a buffer's dimensions in memory, each once."""
    buffer = client.buffer(_SIX, (2, 3))
    it = client.api.call("PJRT_Buffer_GetMemoryLayout", buffer=buffer)
    if it.layout.type != client.api.abi.PJRT_Buffer_MemoryLayout_Type_Tiled:
        raise NotMeasurableError("its layout is one of strides")
    tiled = it.layout.tiled
    order = client.api.integers(tiled.minor_to_major, tiled.minor_to_major_size, "dims")
    expect(sorted(order) == [0, 1], f"the order of its 2 dimensions is {order}")
