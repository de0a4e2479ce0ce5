"""Asynchronous transfers from the host, and host memory that the device may read."""

from __future__ import annotations

import ctypes
from typing import Any

from harness.conformance.c_api.api import int64s
from harness.conformance.c_api.client import Client, floats
from harness.conformance.plugin_check import check, expect

_SIX = [1, 2, 3, 4, 5, 6]


def _manager(client: Client) -> int:
    """Return a manager of transfers to two buffers: of six numbers, and of two rows of one."""
    abi = client.api.abi
    specs, kept = (abi.PJRT_ShapeSpec * 2)(), [int64s((6,)), int64s((2, 1))]
    for spec, dims in zip(specs, kept, strict=True):
        spec.struct_size, spec.num_dims = abi.PJRT_ShapeSpec_STRUCT_SIZE, len(dims)
        spec.dims, spec.element_type = ctypes.addressof(dims), abi.PJRT_Buffer_Type_F32
    it = client.api.call(
        "PJRT_Client_CreateBuffersForAsyncHostToDevice",
        client=client.handle,
        shape_specs=specs,
        num_shape_specs=2,
        memory=client.memory,
    )
    return client.owned(it.transfer_manager, "transfer_manager")


def _buffer(client: Client, manager: int, index: int) -> int:
    it = client.api.call(
        "PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer",
        transfer_manager=manager,
        buffer_index=index,
    )
    return client.owned(it.buffer_out, "RetrieveBuffer: buffer_out")


def _transfer(
    client: Client, manager: int, data: bytes, offset: int = 0, *, last: bool = True
) -> tuple[int, Any]:
    """Begin a transfer to the first buffer; return its event, and the source to keep."""
    source = ctypes.create_string_buffer(data, len(data))
    it = client.api.call(
        "PJRT_AsyncHostToDeviceTransferManager_TransferData",
        transfer_manager=manager,
        buffer_index=0,
        data=source,
        offset=offset,
        transfer_size=len(data),
        is_last_transfer=last,
    )
    return client.owned(it.done_with_h2d_transfer, "done_with_h2d_transfer"), source


@check
def described(client: Client) -> None:
    """Say of a transfer how many buffers are expected, how large they are, and where."""
    manager = _manager(client)
    it = client.api.call(
        "PJRT_AsyncHostToDeviceTransferManager_BufferCount", transfer_manager=manager
    )
    expect(it.buffer_count == 2, f"it expects {it.buffer_count} buffers, of 2")
    for index, least in ((0, 24), (1, 8)):
        it = client.api.call(
            "PJRT_AsyncHostToDeviceTransferManager_BufferSize",
            transfer_manager=manager,
            buffer_index=index,
        )
        expect(it.buffer_size >= least, f"buffer {index} has {it.buffer_size} bytes")
    it = client.api.call("PJRT_AsyncHostToDeviceTransferManager_Device", transfer_manager=manager)
    expect(it.device_out == client.device, "it is for another device than its memory's")


@check
def whole(client: Client) -> None:
    """Transfer a buffer at once."""
    manager = _manager(client)
    buffer = _buffer(client, manager, 0)
    event, _source = _transfer(client, manager, floats(_SIX))
    client.settle(event)
    expect(client.values(buffer) == _SIX, f"the buffer has {client.values(buffer)}")


@check
def in_parts(client: Client) -> None:
    """Transfer a buffer in two parts, the second one first."""
    manager = _manager(client)
    buffer = _buffer(client, manager, 0)
    first, _one = _transfer(client, manager, floats(_SIX[4:]), 16, last=False)
    second, _other = _transfer(client, manager, floats(_SIX[:4]), 0, last=True)
    client.settle(first)
    client.settle(second)
    expect(client.values(buffer) == _SIX, f"the buffer has {client.values(buffer)}")


@check
def not_ready_before(client: Client) -> None:
    """Have a buffer ready only once the last part of its transfer is there."""
    manager = _manager(client)
    buffer = _buffer(client, manager, 0)
    it = client.api.call("PJRT_Buffer_ReadyEvent", buffer=buffer)
    state = client.api.call("PJRT_Event_IsReady", event=it.event)
    expect(not state.is_ready, "a buffer is ready to which nothing was transferred")
    event, _source = _transfer(client, manager, floats(_SIX))
    client.settle(event)
    client.settle(it.event)


@check
def ended_by_an_error(client: Client) -> None:
    """End the transfer of a buffer with the caller's error."""
    manager = _manager(client)
    buffer = _buffer(client, manager, 0)
    client.api.call(
        "PJRT_AsyncHostToDeviceTransferManager_SetBufferError",
        transfer_manager=manager,
        buffer_index=0,
        error_code=13,
        error_message=b"planted by the caller",
    )
    it = client.api.call("PJRT_Buffer_ReadyEvent", buffer=buffer)
    error = client.error_of(it.event)
    expect(error is not None, "a buffer has no error whose transfer was ended by one")


@check
def destroy_nothing(client: Client) -> None:
    """Accept null where a manager of transfers is destroyed."""
    client.initialize()
    client.api.call("PJRT_AsyncHostToDeviceTransferManager_Destroy", transfer_manager=None)


@check
def destroyed_early(client: Client) -> None:
    """Let a manager of transfers be destroyed before anything was transferred."""
    client.api.call(
        "PJRT_AsyncHostToDeviceTransferManager_Destroy", transfer_manager=_manager(client)
    )


@check
def metadata(client: Client) -> None:
    """Accept a transfer's metadata."""
    abi, key = client.api.abi, ctypes.create_string_buffer(b"source")
    text = ctypes.create_string_buffer(b"a check")
    value = (abi.PJRT_NamedValue * 1)()
    value[0].struct_size, value[0].name = abi.PJRT_NamedValue_STRUCT_SIZE, ctypes.addressof(key)
    value[0].name_size, value[0].value_size = 6, 7
    value[0].type, value[0].string_value = abi.PJRT_NamedValue_kString, ctypes.addressof(text)
    client.api.call(
        "PJRT_AsyncHostToDeviceTransferManager_AddMetadata",
        transfer_manager=_manager(client),
        transfer_metadata=value,
        num_metadata=1,
    )


@check
def literal(client: Client) -> None:
    """Transfer a whole array with its shape."""
    manager, source = _manager(client), ctypes.create_string_buffer(floats(_SIX))
    buffer = _buffer(client, manager, 0)
    it = client.api.call(
        "PJRT_AsyncHostToDeviceTransferManager_TransferLiteral",
        transfer_manager=manager,
        buffer_index=0,
        data=source,
        shape_dims=int64s((6,)),
        shape_num_dims=1,
        shape_element_type=client.api.abi.PJRT_Buffer_Type_F32,
        shape_layout=client.tiled([0]),
    )
    client.settle(it.done_with_h2d_transfer)
    expect(client.values(buffer) == _SIX, f"the buffer has {client.values(buffer)}")


@check
def mapped_memory(client: Client) -> None:
    """Map host memory for the device, and unmap it."""
    memory = ctypes.create_string_buffer(1 << 16)
    client.api.call("PJRT_Client_DmaMap", client=client.handle, data=memory, size=1 << 16)
    client.api.call("PJRT_Client_DmaUnmap", client=client.handle, data=memory)
