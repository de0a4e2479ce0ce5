"""Callers that were compiled with an older or a newer header than the plugin.

Each function is called three times: with a struct that ends where the header says, in front of
memory that nobody may touch; with a longer one, as a newer caller has it, whose additional bytes
are no zeros; and with one without its last member, as an older caller may have it. The first two
must succeed. The third may be refused, but nothing behind it may be read.

The header says that callers of other versions are told by ``struct_size``:
https://github.com/openxla/xla/blob/main/xla/pjrt/c/pjrt_c_api.h (PJRT_API_MINOR)
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

from harness.conformance.c_api.api import UNIMPLEMENTED, VOID, ApiError, int64s
from harness.conformance.c_api.client import Client, floats
from harness.conformance.c_api.executable_checks import serialized
from harness.conformance.c_api.guarded import GuardedStruct
from harness.conformance.plugin_check import UnsupportedError, checks, expect

_MORE = 64  # bytes that a newer caller's struct is longer
_NOT_FOUND = 5
# The first two can't refuse. Headers up to PJRT 0.7x give the third one's size without its last
# field, which their callers have.
_NONE_OLDER = VOID | {"PJRT_Plugin_Attributes"}
# A plugin without a compiler that needs no client finds none.
_MAY_LACK = {"PJRT_Compile": (UNIMPLEMENTED, _NOT_FOUND)}
Fields = Mapping[str, Any]


def _device(client: Client) -> Fields:
    return {"device": client.device}


def _description(client: Client) -> Fields:
    return {"device_description": client.description(client.device)}


def _client(client: Client) -> Fields:
    return {"client": client.handle}


def _memory(client: Client) -> Fields:
    return {"memory": client.memory}


def _buffer(client: Client) -> Fields:
    return {"buffer": client.buffer()}


def _held(client: Client) -> Fields:
    buffer = client.buffer()
    client.api.call("PJRT_Buffer_IncreaseExternalReferenceCount", buffer=buffer)
    return {"buffer": buffer}


def _loaded(client: Client) -> Fields:
    return {"executable": client.compiled()}


def _executable(client: Client) -> Fields:
    return {"executable": client.executable(client.compiled())}


def _topology(client: Client) -> Fields:
    it = client.api.call("PJRT_Client_TopologyDescription", client=client.handle)
    return {"topology": it.topology}


def _event(client: Client) -> Fields:
    it = client.api.call("PJRT_Buffer_ReadyEvent", buffer=client.buffer())
    client.api.call("PJRT_Event_Await", event=it.event)
    return {"event": it.event}


def _nothing(client: Client) -> Fields:
    client.initialize()
    return {}


def _on_ready(client: Client) -> Fields:
    return {**_event(client), "callback": ctypes.cast(_IGNORE, ctypes.c_void_p).value}


_IGNORE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(lambda *_: None)


def _error(client: Client) -> Fields:
    it = client.api.arguments("PJRT_Client_LookupDevice", client=client.handle, id=-12345)
    return {"error": client.api.submit("PJRT_Client_LookupDevice", it)}


def _compile(client: Client) -> Fields:
    options = client.compile_options()
    return {"client": client.handle, "program": client.program(), "compile_options": options}


def _compile_for(client: Client) -> Fields:
    return {**_compile(client), **_topology(client)}


def _assignment(client: Client) -> Fields:
    return {
        "client": client.handle,
        "num_replicas": 1,
        "num_partitions": 1,
        "default_assignment": (ctypes.c_int * 1)(-1),
        "default_assignment_size": 1,
    }


def _from_host(client: Client) -> Fields:
    made = client.copy_of(floats([1, 2]), (2,))
    skipped = {"struct_size", "extension_start"}
    fields = {n: getattr(made, n) for n, _ in made._fields_ if n not in skipped}
    _KEPT.append(made)
    return fields


_KEPT: list[Any] = []


def _to_host(client: Client) -> Fields:
    memory = ctypes.create_string_buffer(16)
    return {"src": client.buffer(), "dst": memory, "dst_size": 16}


def _raw(client: Client) -> Fields:
    return {**_buffer(client), "dst": ctypes.create_string_buffer(16), "transfer_size": 16}


def _look_up(client: Client) -> Fields:
    return {"client": client.handle, "id": client.device_id(client.device)}


def _look_up_hardware(client: Client) -> Fields:
    it = client.api.call("PJRT_Device_LocalHardwareId", device=client.device)
    return {"client": client.handle, "local_hardware_id": it.local_hardware_id}


def _execute(client: Client) -> Fields:
    value = client.buffer()
    made = client.execution(client.compiled(), [value, value])
    _KEPT.append(made)
    names = "executable", "options", "argument_lists", "output_lists", "device_complete_events"
    return {**{n: getattr(made, n) for n in names}, "num_devices": 1, "num_args": 2}


def _load(client: Client) -> Fields:
    data = serialized(client, client.compiled())
    return {"client": client.handle, "serialized_executable": data}


def _program(client: Client) -> Fields:
    return {**_executable(client), "program": client.api.struct("PJRT_Program")}


def _uninitialized(client: Client) -> Fields:
    return {
        "client": client.handle,
        "shape_dims": int64s((2,)),
        "shape_num_dims": 1,
        "shape_element_type": client.api.abi.PJRT_Buffer_Type_F32,
        "device": client.device,
        "memory": client.memory,
    }


# How to call each function so that it succeeds. What is not here can't be called alone; the command
# lists it as not covered.
RECIPES: Mapping[str, Callable[[Client], Fields]] = {
    "PJRT_Error_Destroy": _error,
    "PJRT_Error_Message": _error,
    "PJRT_Error_GetCode": _error,
    "PJRT_Plugin_Initialize": _nothing,
    "PJRT_Plugin_Attributes": _nothing,
    "PJRT_Event_Destroy": _event,
    "PJRT_Event_IsReady": _event,
    "PJRT_Event_Error": _event,
    "PJRT_Event_Await": _event,
    "PJRT_Event_OnReady": _on_ready,
    "PJRT_Client_PlatformName": _client,
    "PJRT_Client_ProcessIndex": _client,
    "PJRT_Client_PlatformVersion": _client,
    "PJRT_Client_Devices": _client,
    "PJRT_Client_AddressableDevices": _client,
    "PJRT_Client_LookupDevice": _look_up,
    "PJRT_Client_LookupAddressableDevice": _look_up_hardware,
    "PJRT_Client_AddressableMemories": _client,
    "PJRT_Client_Compile": _compile,
    "PJRT_Client_DefaultDeviceAssignment": _assignment,
    "PJRT_Client_BufferFromHostBuffer": _from_host,
    "PJRT_Client_TopologyDescription": _client,
    "PJRT_Client_CreateUninitializedBuffer": _uninitialized,
    "PJRT_DeviceDescription_Id": _description,
    "PJRT_DeviceDescription_ProcessIndex": _description,
    "PJRT_DeviceDescription_Attributes": _description,
    "PJRT_DeviceDescription_Kind": _description,
    "PJRT_DeviceDescription_DebugString": _description,
    "PJRT_DeviceDescription_ToString": _description,
    "PJRT_Device_GetDescription": _device,
    "PJRT_Device_IsAddressable": _device,
    "PJRT_Device_LocalHardwareId": _device,
    "PJRT_Device_AddressableMemories": _device,
    "PJRT_Device_DefaultMemory": _device,
    "PJRT_Device_MemoryStats": _device,
    "PJRT_Device_ClearMemoryStats": _device,
    "PJRT_Device_GetAttributes": _device,
    "PJRT_Memory_Id": _memory,
    "PJRT_Memory_Kind": _memory,
    "PJRT_Memory_Kind_Id": _memory,
    "PJRT_Memory_DebugString": _memory,
    "PJRT_Memory_ToString": _memory,
    "PJRT_Memory_AddressableByDevices": _memory,
    "PJRT_Executable_Destroy": _executable,
    "PJRT_Executable_Name": _executable,
    "PJRT_Executable_NumReplicas": _executable,
    "PJRT_Executable_NumPartitions": _executable,
    "PJRT_Executable_NumOutputs": _executable,
    "PJRT_Executable_SizeOfGeneratedCodeInBytes": _executable,
    "PJRT_Executable_GetCostAnalysis": _executable,
    "PJRT_Executable_OutputMemoryKinds": _executable,
    "PJRT_Executable_ParameterMemoryKinds": _executable,
    "PJRT_Executable_OptimizedProgram": _program,
    "PJRT_Executable_Serialize": _executable,
    "PJRT_Executable_OutputElementTypes": _executable,
    "PJRT_Executable_OutputDimensions": _executable,
    "PJRT_Executable_Fingerprint": _executable,
    "PJRT_Executable_GetCompiledMemoryStats": _executable,
    "PJRT_Executable_GetCompileOptions": _executable,
    "PJRT_Executable_DeserializeAndLoad": _load,
    "PJRT_LoadedExecutable_Destroy": _loaded,
    "PJRT_LoadedExecutable_GetExecutable": lambda client: {"loaded_executable": client.compiled()},
    "PJRT_LoadedExecutable_AddressableDevices": _loaded,
    "PJRT_LoadedExecutable_AddressableDeviceLogicalIds": _loaded,
    "PJRT_LoadedExecutable_GetDeviceAssignment": _loaded,
    "PJRT_LoadedExecutable_Fingerprint": _loaded,
    "PJRT_LoadedExecutable_Delete": _loaded,
    "PJRT_LoadedExecutable_IsDeleted": _loaded,
    "PJRT_LoadedExecutable_Execute": _execute,
    "PJRT_Buffer_Destroy": _buffer,
    "PJRT_Buffer_ElementType": _buffer,
    "PJRT_Buffer_Dimensions": _buffer,
    "PJRT_Buffer_UnpaddedDimensions": _buffer,
    "PJRT_Buffer_DynamicDimensionIndices": _buffer,
    "PJRT_Buffer_GetMemoryLayout": _buffer,
    "PJRT_Buffer_OnDeviceSizeInBytes": _buffer,
    "PJRT_Buffer_Device": _buffer,
    "PJRT_Buffer_Memory": _buffer,
    "PJRT_Buffer_Delete": _buffer,
    "PJRT_Buffer_IsDeleted": _buffer,
    "PJRT_Buffer_ToHostBuffer": _to_host,
    "PJRT_Buffer_CopyRawToHost": _raw,
    "PJRT_Buffer_IsOnCpu": _buffer,
    "PJRT_Buffer_ReadyEvent": _buffer,
    "PJRT_Buffer_UnsafePointer": _buffer,
    "PJRT_Buffer_IncreaseExternalReferenceCount": _buffer,
    "PJRT_Buffer_DecreaseExternalReferenceCount": _held,
    "PJRT_Buffer_OpaqueDeviceMemoryDataPointer": _held,
    "PJRT_TopologyDescription_PlatformName": _topology,
    "PJRT_TopologyDescription_PlatformVersion": _topology,
    "PJRT_TopologyDescription_GetDeviceDescriptions": _topology,
    "PJRT_TopologyDescription_Serialize": _topology,
    "PJRT_TopologyDescription_Attributes": _topology,
    "PJRT_TopologyDescription_Fingerprint": _topology,
    "PJRT_TopologyDescription_GetMemorySpaceKindIds": _topology,
    "PJRT_Compile": _compile_for,
    "PJRT_ExecuteContext_Create": _nothing,
}


def _ask(client: Client, function: str, size: int, filling: int | None = None) -> ApiError | None:
    """Call a function with a struct of that size; return its error.

    ``filling`` is what the bytes behind the header's struct have.
    """
    fields = RECIPES[function](client)
    struct = client.api.arguments(function, **fields)
    whole = int(struct.struct_size)
    if filling is not None:
        longer = ctypes.create_string_buffer(bytes([filling]) * size, size)
        ctypes.memmove(longer, ctypes.addressof(struct), whole)
        source: Any = longer
    else:
        source = struct
    guarded = GuardedStruct(source, size)
    view = type(struct).from_address(guarded.address)
    view.kept = [guarded, struct]
    return client.api.refusal(function, view)


@checks({name: (name,) for name in RECIPES})
def of(client: Client, function: str) -> None:
    """Heed the caller's struct_size: its own, a newer caller's and an older one's."""
    if client.missing:
        RECIPES[function](client)  # raises, if it needs a client
    if why := client.api.lacks(function):
        raise UnsupportedError(why)
    whole = int(client.api.arguments(function).struct_size)
    error = _ask(client, function, whole)
    if error is not None and error.code in _MAY_LACK.get(function, (UNIMPLEMENTED,)):
        raise UnsupportedError(error.message)
    if error is not None:
        raise error
    newer = _ask(client, function, whole + _MORE, 0xA5)
    expect(newer is None, f"a caller whose struct is {_MORE} bytes longer is refused: {newer}")
    if function not in _NONE_OLDER:
        _ask(client, function, whole - 8)
