"""A client of the plugin with what most checks begin with: devices, programs, buffers, results."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pypjrt.compile_options import CompileOptions

from harness.conformance.c_api.api import ApiError, CApi, handles, int64s
from harness.conformance.plugin_check import NonconformanceError, NotMeasurableError, expect
from harness.conformance.plugin_file import Option

ADD = """module @add {
  func.func public @main(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.add %a, %b : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
"""
SECONDS = 10.0  # a small program or copy that takes longer hangs


@dataclass
class Client:
    """A client, created when a check first needs it.

    ``options`` are the plugin's own, by name; ``missing`` is why no client can be created here, or
    "", and ``uninitialized`` whether even the plugin's initialization did not end well.
    ``planted`` is HLO to compile in place of each program, or nothing.
    """

    api: CApi
    options: Mapping[str, Option] = field(default_factory=dict)
    missing: str = ""
    uninitialized: bool = False
    planted: bytes = b""

    @cached_property
    def handle(self) -> int:
        """The client, after the plugin was initialized."""
        if not self.missing:
            self.initialize()
        return self.created()

    def initialize(self) -> None:
        """Initialize the plugin; raises NotMeasurableError where that has not ended before."""
        if self.uninitialized:
            raise NotMeasurableError(f"the plugin can't be initialized: {self.missing}")
        self.api.call("PJRT_Plugin_Initialize")

    def created(self) -> int:
        """Return one more client; raises NotMeasurableError if there can't be any here."""
        if self.missing:
            raise NotMeasurableError(f"no client: {self.missing}")
        values = (self.api.abi.PJRT_NamedValue * max(len(self.options), 1))()
        kept = [
            self._set(v, name, o)
            for v, (name, o) in zip(values, self.options.items(), strict=False)
        ]
        arguments = self.api.call(
            "PJRT_Client_Create", create_options=values, num_options=len(self.options)
        )
        del kept
        return self.owned(arguments.client, "PJRT_Client_Create: client")

    def owned(self, handle: int | None, name: str) -> int:
        """Return a handle that a function has returned; raises NonconformanceError for null."""
        if not handle:
            raise NonconformanceError(f"{name} is null, without an error")
        return handle

    @cached_property
    def devices(self) -> list[int]:
        """All devices."""
        it = self.api.call("PJRT_Client_Devices", client=self.handle)
        return self.api.pointers(it.devices, it.num_devices, "PJRT_Client_Devices")

    @cached_property
    def addressable(self) -> list[int]:
        """The devices that this process can use, of which there is at least one."""
        it = self.api.call("PJRT_Client_AddressableDevices", client=self.handle)
        matches = self.api.pointers(
            it.addressable_devices, it.num_addressable_devices, "PJRT_Client_AddressableDevices"
        )
        if not matches:
            raise NotMeasurableError("the client has no device that it can use")
        return matches

    @property
    def device(self) -> int:
        """The first device."""
        return self.addressable[0]

    def two_devices(self) -> tuple[int, int]:
        """Return two devices; raises NotMeasurableError if there is only one."""
        if len(self.addressable) < 2:
            raise NotMeasurableError("needs 2 devices, and the client has 1")
        return self.addressable[0], self.addressable[1]

    @cached_property
    def memory(self) -> int:
        """The default memory of the first device."""
        it = self.api.call("PJRT_Device_DefaultMemory", device=self.device)
        return self.owned(it.memory, "PJRT_Device_DefaultMemory: memory")

    def memories(self, device: int) -> list[int]:
        """Return the memories that a device can use."""
        it = self.api.call("PJRT_Device_AddressableMemories", device=device)
        return self.api.pointers(it.memories, it.num_memories, "PJRT_Device_AddressableMemories")

    def kind(self, memory: int) -> str:
        """Return the kind of a memory, such as ``pinned_host``."""
        it = self.api.call("PJRT_Memory_Kind", memory=memory)
        return self.api.text(it.kind, it.kind_size, "PJRT_Memory_Kind")

    def description(self, device: int) -> int:
        """Return the description of a device."""
        it = self.api.call("PJRT_Device_GetDescription", device=device)
        return self.owned(it.device_description, "PJRT_Device_GetDescription: device_description")

    def device_id(self, device: int) -> int:
        """Return the id of a device."""
        it = self.api.call("PJRT_DeviceDescription_Id", device_description=self.description(device))
        return int(it.id)

    def program(self, code: str | bytes = ADD, form: bytes = b"mlir") -> Any:
        """Return a PJRT_Program of that text."""
        content = code.encode() if isinstance(code, str) else code
        return self.api.struct("PJRT_Program", code=content, format=form)

    def compile_options(self, **changes: Any) -> bytes:
        """Return a serialized CompileOptionsProto for one device, unless ``changes`` say more."""
        data: bytes = CompileOptions(**changes).encode(self.api.abi)
        return data

    def compiled(self, code: str | bytes = ADD, **options: Any) -> int:
        """Return a loaded executable of a program."""
        it = self.api.call(
            "PJRT_Client_Compile",
            client=self.handle,
            program=self.program(self.planted, b"hlo") if self.planted else self.program(code),
            compile_options=self.compile_options(**options),
        )
        return self.owned(it.executable, "PJRT_Client_Compile: executable")

    def executable(self, loaded: int) -> int:
        """Return the executable of a loaded one."""
        it = self.api.call("PJRT_LoadedExecutable_GetExecutable", loaded_executable=loaded)
        return self.owned(it.executable, "PJRT_LoadedExecutable_GetExecutable: executable")

    def from_host(self, data: bytes, dims: Sequence[int], kind: str = "F32", **more: Any) -> Any:
        """Return the struct of a copy to the first device, after the call; ``data`` stays alive.

        ``more`` are other fields of the struct.
        """
        return self.api.finish(
            "PJRT_Client_BufferFromHostBuffer", self.copy_of(data, dims, kind, **more)
        )

    def copy_of(self, data: Any, dims: Sequence[int], kind: str = "F32", **more: Any) -> Any:
        """Return the struct that asks for a copy to the first device."""
        abi = self.api.abi
        if isinstance(data, bytes):
            data = ctypes.create_string_buffer(data, max(len(data), 1))
        fields = {
            "client": self.handle,
            "data": data,
            "type": getattr(abi, f"PJRT_Buffer_Type_{kind}"),
            "dims": int64s(dims),
            "num_dims": len(dims),
            "host_buffer_semantics": abi.PJRT_HostBufferSemantics_kImmutableOnlyDuringCall,
            "device": self.device,
        }
        return self.api.arguments("PJRT_Client_BufferFromHostBuffer", **{**fields, **more})

    def buffer(self, values: Sequence[float] = (1, 2, 3, 4), dims: Sequence[int] = ()) -> int:
        """Return a buffer of 32-bit floating-point numbers, after the copy has ended."""
        made = self.from_host(floats(values), dims or (len(values),))
        handle = self.owned(made.buffer, "PJRT_Client_BufferFromHostBuffer: buffer")
        if made.done_with_host_buffer:
            self.settle(made.done_with_host_buffer)
        return handle

    def settle(self, event: int) -> None:
        """Wait for an event and free it; raises ApiError if it has an error."""
        self.owned(event, "an event")
        try:
            self.api.call("PJRT_Event_Await", event=event)
        finally:
            self.api.call("PJRT_Event_Destroy", event=event)

    def error_of(self, event: int) -> ApiError | None:
        """Wait for an event; return its error, or None."""
        request = self.api.arguments("PJRT_Event_Await", event=event)
        return self.api.refusal("PJRT_Event_Await", request)

    def expect_refusal(self, function: str, request: Any, otherwise: str) -> None:
        """Raise NonconformanceError unless the call, or the event that it returns, has an error."""
        error = self.api.refusal(function, request)
        (event,) = getattr(request, "events", None) or [getattr(request, "event", None)]
        if error is None and event:
            error = self.error_of(event)
        expect(error is not None, otherwise)

    def content(self, buffer: int, layout: Any = None) -> bytes:
        """Return a buffer's bytes on the host, in ``layout`` if one is given."""
        fields = {} if layout is None else {"host_layout": layout}
        size = self.api.call("PJRT_Buffer_ToHostBuffer", src=buffer, **fields).dst_size
        expect(size <= 1 << 30, f"PJRT_Buffer_ToHostBuffer wants {size:,} bytes")
        memory = ctypes.create_string_buffer(max(size, 1))
        it = self.api.call(
            "PJRT_Buffer_ToHostBuffer", src=buffer, dst=memory, dst_size=size, **fields
        )
        self.settle(it.event)
        return memory.raw[:size]

    def values(self, buffer: int) -> list[float]:
        """Return a buffer's 32-bit floating-point numbers."""
        data = self.content(buffer)
        return list(struct.unpack(f"={len(data) // 4}f", data))

    def run(
        self, loaded: int, arguments: Sequence[int], outputs: int = 1, **more: Any
    ) -> list[int]:
        """Execute on one device; return the outputs, after the program has ended.

        ``more`` are fields of PJRT_ExecuteOptions.
        """
        request = self.execution(loaded, arguments, outputs, **more)
        self.api.finish("PJRT_LoadedExecutable_Execute", request)
        self.settle(request.events[0])
        return self.api.pointers(
            ctypes.addressof(request.outputs), outputs, "PJRT_LoadedExecutable_Execute: outputs"
        )

    def execution(
        self, loaded: int, arguments: Sequence[int], outputs: int = 1, **more: Any
    ) -> Any:
        """Return the struct that asks for an execution on one device.

        ``outputs`` and ``events`` of the struct are the arrays that the plugin fills in.
        """
        own, results = handles(arguments), handles([0] * outputs)
        events = handles([0])
        made = self.api.arguments(
            "PJRT_LoadedExecutable_Execute",
            executable=loaded,
            options=self.api.struct("PJRT_ExecuteOptions", **more),
            argument_lists=handles([ctypes.addressof(own)]),
            output_lists=handles([ctypes.addressof(results)]),
            device_complete_events=events,
            num_devices=1,
            num_args=len(arguments),
        )
        made.kept += [own, results]
        made.outputs, made.events = results, events
        return made

    def is_deleted(self, buffer: int) -> bool:
        """Return whether a buffer says that it was deleted."""
        return bool(self.api.call("PJRT_Buffer_IsDeleted", buffer=buffer).is_deleted)

    def tiled(self, minor_to_major: Sequence[int]) -> Any:
        """Return the layout without tiles that has the dimensions in this order in memory."""
        abi, layout = self.api.abi, self.api.struct("PJRT_Buffer_MemoryLayout")
        order = int64s(minor_to_major)
        layout.kept.append(order)
        layout.type = abi.PJRT_Buffer_MemoryLayout_Type_Tiled
        layout.tiled.struct_size = abi.PJRT_Buffer_MemoryLayout_Tiled_STRUCT_SIZE
        layout.tiled.minor_to_major = ctypes.addressof(order)
        layout.tiled.minor_to_major_size = len(minor_to_major)
        return layout

    def _set(self, value: Any, name: str, option: Option) -> list[Any]:
        """Fill in a PJRT_NamedValue; return what has to stay alive."""
        abi, key = self.api.abi, ctypes.create_string_buffer(name.encode())
        value.struct_size, value.name = abi.PJRT_NamedValue_STRUCT_SIZE, ctypes.addressof(key)
        value.name_size, value.value_size = len(name.encode()), 1
        kept: list[Any] = [key]
        match option:
            case bool():
                value.type, value.bool_value = abi.PJRT_NamedValue_kBool, option
            case int():
                value.type, value.int64_value = abi.PJRT_NamedValue_kInt64, option
            case float():
                value.type, value.float_value = abi.PJRT_NamedValue_kFloat, option
            case str():
                kept.append(ctypes.create_string_buffer(option.encode()))
                value.type, value.string_value = (
                    abi.PJRT_NamedValue_kString,
                    ctypes.addressof(kept[1]),
                )
                value.value_size = len(option.encode())
        return kept


def floats(values: Sequence[float]) -> bytes:
    """Return 32-bit floating-point numbers in the machine's order of bytes."""
    return struct.pack(f"={len(values)}f", *values)
