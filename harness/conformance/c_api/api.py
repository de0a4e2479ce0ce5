"""Call the functions of a plugin's table, as a framework's client would.

``pypjrt`` has the structs of ``pjrt_c_api.h`` and finds the table; nothing of its own client is
used, since checks have to hand over what no client would.
https://github.com/openxla/xla/blob/main/xla/pjrt/c/pjrt_c_api.h
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

from pypjrt import Plugin, _abi

from harness.conformance.plugin_check import NonconformanceError, UnsupportedError

# They return nothing: what a caller finds in the register is no error.
VOID = frozenset({"PJRT_Error_Destroy", "PJRT_Error_Message"})
# What the clients of JAX and torch_xla call without looking whether the entry is null, and can't do
# without: what other functions may lack is an error here.
NEEDED = frozenset(
    (
        *("PJRT_Error_Destroy", "PJRT_Error_Message", "PJRT_Error_GetCode"),
        *("PJRT_Plugin_Initialize", "PJRT_Plugin_Attributes"),
        *("PJRT_Event_Destroy", "PJRT_Event_IsReady", "PJRT_Event_Error", "PJRT_Event_Await"),
        "PJRT_Event_OnReady",
        *("PJRT_Client_Create", "PJRT_Client_Destroy", "PJRT_Client_PlatformName"),
        *("PJRT_Client_PlatformVersion", "PJRT_Client_ProcessIndex", "PJRT_Client_Devices"),
        *(
            "PJRT_Client_AddressableDevices",
            "PJRT_Client_AddressableMemories",
            "PJRT_Client_Compile",
        ),
        *("PJRT_Client_DefaultDeviceAssignment", "PJRT_Client_BufferFromHostBuffer"),
        *("PJRT_Client_LookupDevice", "PJRT_Client_LookupAddressableDevice"),
        *("PJRT_DeviceDescription_Id", "PJRT_DeviceDescription_ProcessIndex"),
        *("PJRT_DeviceDescription_Attributes", "PJRT_DeviceDescription_Kind"),
        *("PJRT_DeviceDescription_DebugString", "PJRT_DeviceDescription_ToString"),
        *("PJRT_Device_GetDescription", "PJRT_Device_IsAddressable", "PJRT_Device_LocalHardwareId"),
        *("PJRT_Device_AddressableMemories", "PJRT_Device_DefaultMemory"),
        *("PJRT_Memory_Id", "PJRT_Memory_Kind", "PJRT_Memory_Kind_Id", "PJRT_Memory_DebugString"),
        *("PJRT_Memory_ToString", "PJRT_Memory_AddressableByDevices"),
        *("PJRT_Executable_Destroy", "PJRT_Executable_Name", "PJRT_Executable_NumReplicas"),
        *("PJRT_Executable_NumPartitions", "PJRT_Executable_NumOutputs"),
        *("PJRT_LoadedExecutable_Destroy", "PJRT_LoadedExecutable_GetExecutable"),
        *("PJRT_LoadedExecutable_AddressableDevices", "PJRT_LoadedExecutable_Delete"),
        *("PJRT_LoadedExecutable_IsDeleted", "PJRT_LoadedExecutable_Execute"),
        *("PJRT_Buffer_Destroy", "PJRT_Buffer_ElementType", "PJRT_Buffer_Dimensions"),
        *("PJRT_Buffer_OnDeviceSizeInBytes", "PJRT_Buffer_Device", "PJRT_Buffer_Delete"),
        *("PJRT_Buffer_IsDeleted", "PJRT_Buffer_ToHostBuffer", "PJRT_Buffer_ReadyEvent"),
    )
)
# Those that describe an error while one is being raised: their calls are no step of the check.
OF_ERRORS = frozenset({*VOID, "PJRT_Error_GetCode"})
UNIMPLEMENTED = 12  # absl's code of an error
_MOST_TEXT = 1 << 26  # bytes of a text that a plugin gives


class PlantedFault(Protocol):
    """What stands in front of a plugin's functions, to plant a fault."""

    def __call__(self, function: str, struct: Any, real: Callable[[Any], int]) -> int:
        """Call the function, or do something else; return the error or 0."""

    def hides(self, function: str) -> bool:
        """Return whether the function's entry has to look null."""


class ApiError(Exception):
    """An error that the plugin returned: ``code`` is absl's, ``message`` the plugin's words."""

    def __init__(self, function: str, code: int, message: str) -> None:
        super().__init__(f"{function} returned code {code}: {message[:1000]}")
        self.code, self.message = code, message


class CApi:
    """A loaded plugin's table of functions.

    ``note`` is called with each step before it is taken, so that a process that dies in it has said
    which it was. ``shim``, for planted faults, stands in front of every function.
    """

    def __init__(
        self,
        path: Path,
        *,
        note: Callable[[str], None] = lambda _: None,
        shim: PlantedFault | None = None,
    ) -> None:
        self._path, self._note, self._shim = path, note, shim
        self.abi = _abi.load(*_abi.available()[0])[0]

    @cached_property
    def plugin(self) -> Any:
        """The library. A check that ends before it calls a function does not load it."""
        return Plugin(self._path)

    @property
    def functions(self) -> Sequence[str]:
        """The names of all functions that the header knows, in the table's order."""
        return tuple(self.abi.SLOT)

    def lacks(self, function: str) -> str:
        """Return why the plugin has no such function, or ""."""
        if self.abi.SLOT[function] >= self.plugin.n_slots:
            major, minor = self.plugin.api_version
            return f"PJRT {major}.{minor} has no {function}"
        if not self._address(function) or (self._shim and self._shim.hides(function)):
            return f"the entry {function} is null"
        return ""

    def arguments(self, function: str, **fields: Any) -> Any:
        """Return the function's struct, zeroed but for its size and these fields.

        Text sets its size, too; a sequence becomes an array that lives as long as the struct.
        """
        return self.struct(f"{function}_Args", **fields)

    def struct(self, name: str, **fields: Any) -> Any:
        """Return any struct of the header, as ``arguments`` does."""
        made = getattr(self.abi, name)()
        made.struct_size = getattr(self.abi, f"{name}_STRUCT_SIZE")
        made.kept = []
        for field, value in fields.items():
            if isinstance(value, bytes):
                memory = ctypes.create_string_buffer(value, len(value))
                made.kept.append(memory)
                setattr(made, field, ctypes.addressof(memory))
                setattr(made, f"{field}_size", len(value))
            elif isinstance(value, ctypes.Array | ctypes.Structure):
                made.kept.append(value)
                setattr(made, field, ctypes.addressof(value))
            else:
                setattr(made, field, value)
        return made

    def submit(self, function: str, struct: Any) -> int:
        """Call the function; return the address of the error, which is the caller's, or 0.

        Raises UnsupportedError for a function that the plugin does not have and may lack, and
        NonconformanceError for one that clients need.
        """
        if why := self.lacks(function):
            raise (NonconformanceError if function in NEEDED else UnsupportedError)(why)
        if function not in OF_ERRORS:
            self._note(function)
        call = self._function(function)

        def real(arguments: Any) -> int:
            error = call(ctypes.byref(arguments))
            return 0 if function in VOID else error or 0

        return real(struct) if self._shim is None else self._shim(function, struct, real)

    def call(self, function: str, **fields: Any) -> Any:
        """Call the function with these fields; return its struct, with what the plugin wrote.

        Raises ApiError, and UnsupportedError if the plugin has no such function or calls one
        unimplemented that it may lack.
        """
        return self.finish(function, self.arguments(function, **fields))

    def finish(self, function: str, struct: Any) -> Any:
        """Call the function with a struct that is already filled in, as ``call`` does."""
        error = self.submit(function, struct)
        if error:
            raised = self.take(function, error)
            if raised.code == UNIMPLEMENTED and function not in NEEDED:
                raise UnsupportedError(str(raised)) from raised
            raise raised
        return struct

    def refusal(self, function: str, struct: Any) -> ApiError | None:
        """Call the function; return its error, or None if it succeeded."""
        error = self.submit(function, struct)
        return self.take(function, error) if error else None

    def take(self, function: str, error: int) -> ApiError:
        """Read an error and free it."""
        message = self.arguments("PJRT_Error_Message", error=error)
        self.submit("PJRT_Error_Message", message)
        text = self.text(message.message, message.message_size, "an error's message")
        code = self.arguments("PJRT_Error_GetCode", error=error)
        if self.submit("PJRT_Error_GetCode", code):
            raise NonconformanceError("PJRT_Error_GetCode returned an error")
        self.submit("PJRT_Error_Destroy", self.arguments("PJRT_Error_Destroy", error=error))
        return ApiError(function, int(code.code), text)

    def text(self, address: int | None, size: int, name: str) -> str:
        """Return the text at an address; raises NonconformanceError unless it is one."""
        return self.content(address, size, name).decode(errors="replace")

    def content(self, address: int | None, size: int, name: str) -> bytes:
        """Return the bytes at an address; raises NonconformanceError if there can't be any."""
        if size > _MOST_TEXT:
            raise NonconformanceError(f"{name} has {size:,} bytes")
        if size and not address:
            raise NonconformanceError(f"{name} has {size} bytes at a null address")
        return ctypes.string_at(address, size) if address else b""

    def integers(
        self, address: int | None, count: int, name: str, *, kind: Literal["q", "Q"] = "q"
    ) -> list[int]:
        """Return an array of 64-bit numbers, signed unless ``kind`` is ``Q``."""
        return [*memoryview(self.content(address, 8 * count, name)).cast(kind)]

    def free(self, deleter: int | None, owner: int, name: str) -> None:
        """Free what a function returned with its deleter; raises NonconformanceError for null."""
        if not deleter:
            raise NonconformanceError(f"{name} is null")
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(deleter)(owner)

    def pointers(self, address: int | None, count: int, name: str) -> list[int]:
        """Return an array of handles; raises NonconformanceError where one is null."""
        if not 0 <= count <= 1 << 20:
            raise NonconformanceError(f"{name}: {count:,} of them")
        if count and not address:
            raise NonconformanceError(f"{name}: {count} of them at a null address")
        handles = (
            list(ctypes.cast(address or 0, ctypes.POINTER(ctypes.c_void_p))[:count])
            if count
            else []
        )
        if None in handles:
            raise NonconformanceError(f"{name}: number {handles.index(None)} is null")
        return handles

    def named_values(self, address: int | None, count: int, name: str) -> Mapping[str, Any]:
        """Return an array of PJRT_NamedValue as Python values.

        Raises NonconformanceError where a name or a value can't be read.
        """
        if not 0 <= count <= 1 << 16 or (count and not address):
            raise NonconformanceError(f"{name}: {count:,} values at {address or 'a null address'}")
        return dict(self._values(address, count, name))

    def _values(
        self, address: int | None, count: int, name: str
    ) -> Iterator[tuple[str, str | int | float | bool | list[int]]]:
        offset = address or 0
        for number in range(count):
            value = self.abi.PJRT_NamedValue.from_address(offset)
            if value.struct_size < self.abi.PJRT_NamedValue_STRUCT_SIZE:
                raise NonconformanceError(
                    f"{name}: struct_size of value {number} is {value.struct_size}, expected "
                    f"{self.abi.PJRT_NamedValue_STRUCT_SIZE}"
                )
            offset += ctypes.sizeof(self.abi.PJRT_NamedValue)
            key = self.text(value.name, value.name_size, f"{name}: the name of value {number}")
            if not key:
                raise NonconformanceError(f"{name}: value {number} has no name")
            yield key, self._value(value, f"{name}: {key}")

    def _value(self, value: Any, name: str) -> Any:
        kinds = "kString", "kInt64", "kInt64List", "kFloat", "kBool"
        codes = {getattr(self.abi, f"PJRT_NamedValue_{kind}"): kind for kind in kinds}
        match codes.get(int(value.type)):
            case "kString":
                return self.text(value.string_value, value.value_size, name)
            case "kInt64":
                return int(value.int64_value)
            case "kInt64List":
                return self.integers(value.int64_array_value, value.value_size, name)
            case "kFloat":
                return float(value.float_value)
            case "kBool":
                return bool(value.bool_value)
        raise NonconformanceError(f"{name} is of type {value.type}, which the header does not have")

    def _address(self, function: str) -> int:
        slot = self.abi.VTABLE_OFFSET + 8 * self.abi.SLOT[function]
        return ctypes.c_void_p.from_address(self.plugin.api + slot).value or 0

    def _function(self, function: str) -> Callable[[Any], int | None]:
        made: Callable[[Any], int | None] = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(
            self._address(function)
        )
        return made


def int64s(values: Iterable[int]) -> Any:
    """Return a C array of ``int64_t``; at least one long, so that its address is valid."""
    values = list(values)
    return (ctypes.c_int64 * max(len(values), 1))(*values)


def handles(values: Iterable[int]) -> Any:
    """Return a C array of pointers; at least one long."""
    values = list(values)
    return (ctypes.c_void_p * max(len(values), 1))(*values)
