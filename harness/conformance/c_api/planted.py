"""Faults of a plugin, planted in front of one that conforms: does a check see them?

A fault is a name such as ``wrong:PJRT_Buffer_Dimensions``: what is done, and to which function.
Those without a function are violations of their own. The shim runs in the check's process and sees
each struct before and after the plugin does.
"""

from __future__ import annotations

import ctypes
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from harness.conformance.c_api.api import NEEDED, VOID
from harness.conformance.plugin_check import PLANTED

Real = Callable[[Any], int]


class Call(NamedTuple):
    """A call that a fault may change: its shim, the function, the struct, and the plugin's own."""

    shim: Shim
    function: str
    struct: Any
    real: Real


Plant = Callable[[Call], int]
_SKIPPED = frozenset({"struct_size", "extension_start"})
_HOURS = 3600.0


class Shim:
    """The fault of that name, to be called in front of every function of the plugin.

    ``note`` is called with ``PLANTED`` when a call differs from what the plugin would have done.
    """

    def __init__(self, name: str, note: Callable[[str], None]) -> None:
        self._note = note
        self._is_about_size = name.startswith(("beyond:", "crash:", "hang:"))
        kind, _, self._function = name.partition(":")
        self._plant = _GENERIC.get(kind) or _NAMED[name]
        self.state: dict[str, Any] = {}
        self._errors = set[int]()

    def __call__(self, function: str, struct: Any, real: Real) -> int:
        """Call the function, or do what the fault does instead; return the error or 0."""
        if function.startswith("PJRT_Error_") and (struct.error or 0) in self._errors:
            return self._of_own_error(function, struct)
        if self._function and function != self._function:
            return real(struct)
        if struct.struct_size < _whole(struct) and not self._is_about_size:
            return real(struct)  # what is changed may be behind an older caller's struct
        return self._plant(Call(self, function, struct, real))

    def hides(self, function: str) -> bool:
        """Return whether the fault makes the function's entry null."""
        hidden = function == getattr(self._plant, "hidden", "")
        if hidden:
            self.planted()
        return hidden

    def planted(self) -> None:
        """Say that a call was changed."""
        self._note(PLANTED)

    def error(self) -> int:
        """Return an error of the shim's own, of code INTERNAL."""
        self.planted()
        memory = ctypes.create_string_buffer(8)
        self.state.setdefault("kept", []).append(memory)
        self._errors.add(ctypes.addressof(memory))
        return ctypes.addressof(memory)

    def _of_own_error(self, function: str, struct: Any) -> int:
        if function == "PJRT_Error_Message":
            text = ctypes.create_string_buffer(b"planted")
            self.state["text"] = text
            struct.message, struct.message_size = ctypes.addressof(text), 7
        elif function == "PJRT_Error_GetCode":
            struct.code = 13
        return 0


def _whole(struct: Any) -> int:
    """Return the size of a struct as the header has it."""
    last, kind = struct._fields_[-1]
    return int(getattr(type(struct), last).offset + ctypes.sizeof(kind))


def _values(struct: Any) -> dict[str, Any]:
    return {
        name: getattr(struct, name)
        for name, kind in struct._fields_
        if name not in _SKIPPED and issubclass(kind, ctypes._SimpleCData)
    }


def _changed(struct: Any, real: Real) -> tuple[int, list[str]]:
    """Call the function; return its error, and the fields that it has written to."""
    before = _values(struct)
    error = real(struct)
    return error, [name for name, value in _values(struct).items() if value != before[name]]


def _null(call: Call) -> int:
    """Succeed, with null where there is a pointer."""
    error, fields = _changed(call.struct, call.real)
    for name, kind in call.struct._fields_:
        if name in fields and kind is ctypes.c_void_p:
            call.shim.planted()
            setattr(call.struct, name, None)
    return error


def _silent(call: Call) -> int:
    """Succeed without having done anything."""
    call.shim.planted()
    return 0


def _wrong(call: Call) -> int:
    """Return other numbers than the plugin's."""
    error, fields = _changed(call.struct, call.real)
    types = dict(call.struct._fields_)
    for name, value in _values(call.struct).items():
        if types[name] is ctypes.c_bool:
            call.shim.planted()
            setattr(call.struct, name, not value)
        elif types[name] is not ctypes.c_void_p and name in fields:
            call.shim.planted()
            setattr(call.struct, name, value + 1)
    return error


def _fails(call: Call) -> int:
    """Return an error though nothing is wrong."""
    return call.shim.error()


def _strict(call: Call) -> int:
    """Refuse a caller whose struct is longer than the plugin's (aws-neuron-sdk#1095)."""
    is_newer = call.struct.struct_size > _whole(call.struct)
    return call.shim.error() if is_newer else call.real(call.struct)


def _beyond(call: Call) -> int:
    """Read what is behind the caller's struct."""
    call.shim.planted()
    end = (ctypes.addressof(call.struct) + call.struct.struct_size + 7) // 8 * 8
    ctypes.string_at(end, 8)
    return call.real(call.struct)


def _crash(call: Call) -> int:
    """Read address 8."""
    call.shim.planted()
    ctypes.string_at(8, 1)
    return 0


def _hang(call: Call) -> int:
    """Return after an hour."""
    call.shim.planted()
    time.sleep(_HOURS)
    return call.real(call.struct)


_GENERIC: Mapping[str, Plant] = {
    "null": _null,
    "silent": _silent,
    "wrong": _wrong,
    "fails": _fails,
    "strict": _strict,
    "beyond": _beyond,
    "crash": _crash,
    "hang": _hang,
}


def _only(function: str) -> Callable[[Plant], Plant]:
    """Make a fault that changes one function's calls, and hands on all others."""

    def make(change: Plant) -> Plant:
        def plant(call: Call) -> int:
            if call.function != function:
                return call.real(call.struct)
            call.shim.planted()
            return change(call)

        plant.functions = (function,)  # type: ignore[attr-defined]
        return plant

    return make


@_only("PJRT_Event_IsReady")
def _never_ready(call: Call) -> int:
    error = call.real(call.struct)
    call.struct.is_ready = False
    return error


@_only("PJRT_Event_OnReady")
def _calls_back_twice(call: Call) -> int:
    call.real(call.struct)
    return call.real(call.struct)


@_only("PJRT_Event_OnReady")
def _calls_back_with_error(call: Call) -> int:
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(call.struct.callback)(
        call.shim.error(), call.struct.user_arg
    )
    return 0


@_only("PJRT_Error_Destroy")
def _frees_twice(call: Call) -> int:
    call.real(call.struct)
    return call.real(call.struct)


@_only("PJRT_LoadedExecutable_Execute")
def _donates_nothing(call: Call) -> int:
    options = _options(call)
    indices = (ctypes.c_int64 * 8)(*range(8))
    call.shim.state["indices"] = indices
    options.non_donatable_input_indices = ctypes.addressof(indices)
    options.num_non_donatable_input_indices = call.struct.num_args
    return call.real(call.struct)


@_only("PJRT_LoadedExecutable_Execute")
def _ignores_non_donatable(call: Call) -> int:
    _options(call).num_non_donatable_input_indices = 0
    return call.real(call.struct)


@_only("PJRT_LoadedExecutable_Execute")
def _no_events(call: Call) -> int:
    events, call.struct.device_complete_events = call.struct.device_complete_events, None
    error = call.real(call.struct)
    call.struct.device_complete_events = events
    return error


@_only("PJRT_LoadedExecutable_Execute")
def _swaps_arguments(call: Call) -> int:
    if call.struct.num_args == 2:
        lists = ctypes.cast(call.struct.argument_lists, ctypes.POINTER(ctypes.c_void_p))
        own = (ctypes.c_void_p * 2).from_address(lists[0])
        own[0], own[1] = own[1], own[0]
    return call.real(call.struct)


def _options(call: Call) -> Any:
    from pypjrt import _abi

    abi = _abi.load(*_abi.available()[0])[0]
    return abi.PJRT_ExecuteOptions.from_address(call.struct.options)


@_only("PJRT_Client_Devices")
def _order_changes(call: Call) -> int:
    error = call.real(call.struct)
    count = call.shim.state["calls"] = call.shim.state.get("calls", 0) + 1
    devices = (ctypes.c_void_p * call.struct.num_devices).from_address(call.struct.devices)
    if count > 1:
        other = (ctypes.c_void_p * call.struct.num_devices)(*reversed(list(devices)))
        call.shim.state["other"] = other
        call.struct.devices = ctypes.addressof(other)
    return error


@_only("PJRT_Device_AddressableMemories")
def _memories_change(call: Call) -> int:
    error = call.real(call.struct)
    count = call.shim.state["calls"] = call.shim.state.get("calls", 0) + 1
    memories = (ctypes.c_void_p * call.struct.num_memories).from_address(call.struct.memories)
    if count > 1:
        other = (ctypes.c_void_p * call.struct.num_memories)(*reversed(list(memories)))
        call.shim.state["other"] = other
        call.struct.memories = ctypes.addressof(other)
    return error


@_only("PJRT_Memory_Kind")
def _one_kind(call: Call) -> int:
    error = call.real(call.struct)
    text = call.shim.state["text"] = ctypes.create_string_buffer(b"device")
    call.struct.kind, call.struct.kind_size = ctypes.addressof(text), 6
    return error


@_only("PJRT_Client_BufferFromHostBuffer")
def _reads_late(call: Call) -> int:
    call.struct.host_buffer_semantics = 2 if call.struct.host_buffer_semantics == 0 else 0
    return call.real(call.struct)


@_only("PJRT_Client_BufferFromHostBuffer")
def _ignores_strides(call: Call) -> int:
    call.struct.num_byte_strides, call.struct.byte_strides = 0, None
    return call.real(call.struct)


def _ignores_memory(call: Call) -> int:
    if call.function == "PJRT_Client_BufferFromHostBuffer" and call.struct.memory:
        call.shim.planted()
        call.struct.device, call.struct.memory = call.shim.state["device"], None
    error = call.real(call.struct)
    if call.function == "PJRT_Client_AddressableDevices":
        call.shim.state["device"] = ctypes.c_void_p.from_address(call.struct.addressable_devices)
    return error


_ignores_memory.functions = ("PJRT_Client_BufferFromHostBuffer",)  # type: ignore[attr-defined]


@_only("PJRT_Buffer_ToHostBuffer")
def _ignores_host_layout(call: Call) -> int:
    call.struct.host_layout = None
    return call.real(call.struct)


@_only("PJRT_Plugin_Attributes")
def _null_attributes(call: Call) -> int:
    error = call.real(call.struct)
    call.struct.attributes = None
    return error


@_only("PJRT_Plugin_Attributes")
def _no_attributes(call: Call) -> int:
    error = call.real(call.struct)
    call.struct.num_attributes = 0
    return error


def _unimplemented(*functions: str) -> Plant:
    def plant(call: Call) -> int:
        return call.shim.error() if call.function in functions else call.real(call.struct)

    plant.functions = functions  # type: ignore[attr-defined]
    return plant


def _null_entry(function: str) -> Plant:
    def plant(call: Call) -> int:
        return call.real(call.struct)  # of another function: nobody can call this one

    plant.functions, plant.hidden = (function,), function  # type: ignore[attr-defined]
    return plant


# Violations of their own; those with a thread are what it reports.
_NAMED: Mapping[str, Plant] = {
    "aws-neuron-sdk#1094": _null_attributes,
    "tt-xla#97": _no_attributes,
    "iree#19223": _unimplemented("PJRT_Plugin_Attributes"),
    "iree#20907": _unimplemented(
        "PJRT_Device_AddressableMemories", "PJRT_Device_DefaultMemory", "PJRT_Memory_Kind"
    ),
    "openxla-pjrt-plugin#262": _null_entry("PJRT_Device_AddressableMemories"),
    "tt-xla#4970": _null_entry("PJRT_Client_CreateUninitializedBuffer"),
    "event never ready": _never_ready,
    "event calls back twice": _calls_back_twice,
    "event calls back with an error": _calls_back_with_error,
    "error freed twice": _frees_twice,
    "nothing is donated": _donates_nothing,
    "what must not be donated is": _ignores_non_donatable,
    "no event of an execution": _no_events,
    "arguments swapped": _swaps_arguments,
    "order of devices changes": _order_changes,
    "order of memories changes": _memories_change,
    "memories of one kind": _one_kind,
    "source read late": _reads_late,
    "strides ignored": _ignores_strides,
    "memory ignored": _ignores_memory,
    "layout on the host ignored": _ignores_host_layout,
}


def faults(functions: Iterable[str]) -> Sequence[str]:
    """Return the names of all faults of these functions, and those that have none."""
    names = [
        f"{kind}:{function}"
        for function in functions
        for kind in _GENERIC
        if function not in VOID or kind in ("crash", "hang", "null", "silent")
    ]
    return [*_NAMED, *names]


def may_be_lacking(fault: str) -> bool:
    """Return whether a fault makes an entry null that a plugin may lack."""
    hidden = getattr(_NAMED.get(fault), "hidden", None)
    return hidden is not None and hidden not in NEEDED


def functions_of(fault: str) -> frozenset[str]:
    """Return the functions whose calls a fault changes."""
    if fault in _NAMED:
        return frozenset(_NAMED[fault].functions)  # type: ignore[attr-defined]
    return frozenset({fault.partition(":")[2]})


def sample(functions: Iterable[str], count: int, seed: int) -> Sequence[str]:
    """Return all violations of their own, and so many others, chosen by the seed."""
    others = [name for name in faults(functions) if name not in _NAMED]
    return [*_NAMED, *random.Random(seed).sample(others, min(count, len(others)))]  # noqa: S311
