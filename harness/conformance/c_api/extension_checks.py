"""Extensions that JAX calls: layouts, and what describes memories. Others are only listed."""

from __future__ import annotations

import ctypes
from typing import Any

from harness.conformance.c_api.api import int64s
from harness.conformance.c_api.client import Client
from harness.conformance.c_api.executable_checks import TWO
from harness.conformance.plugin_check import UnsupportedError, check, expect


class _Layouts:
    """The functions of the extension about layouts.

    https://github.com/openxla/xla/blob/main/xla/pjrt/c/pjrt_c_api_layouts_extension.h
    """

    def __init__(self, client: Client) -> None:
        self.client, abi = client, client.api.abi
        client.handle  # noqa: B018 - created first, as frameworks do
        extension = client.api.plugin.extension("Layouts")
        if extension is None:
            raise UnsupportedError("it has no extension for layouts")
        self._extension = abi.PJRT_Layouts_Extension.from_address(extension.address)

    def call(self, name: str, **fields: Any) -> Any:
        """Call a function of the extension; raises ApiError."""
        api = self.client.api
        member = f"PJRT_Layouts_{name}"
        end = getattr(api.abi.PJRT_Layouts_Extension, member).offset + 8
        address = getattr(self._extension, member) if end <= self._extension.base.struct_size else 0
        if not address:
            raise UnsupportedError(f"its extension for layouts has no {name}")
        struct = api.struct(f"{member}_Args", **fields)
        error = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(address)(ctypes.byref(struct))
        if error:
            raise api.take(member, error)
        return struct

    def text(self, layout: int) -> str:
        """Return a layout as the text that XLA reads, such as ``{1,0}``."""
        it = self.call("MemoryLayout_Serialize", layout=layout)
        data = self.client.api.text(it.serialized_bytes, it.serialized_bytes_size, "a layout")
        name = "serialized_layout_deleter"
        self.client.api.free(it.serialized_layout_deleter, it.serialized_layout, name)
        return data


def _order(text: str) -> str:
    """Return the order of the dimensions in a layout's text."""
    return text.strip("{}").partition(":")[0]


@check
def default_layout(client: Client) -> None:
    """State the default layout of an array, which is that of a new buffer."""
    layouts = _Layouts(client)
    it = layouts.call(
        "PJRT_Client_GetDefaultLayout",
        client=client.handle,
        type=client.api.abi.PJRT_Buffer_Type_F32,
        dims=int64s((2, 3)),
        num_dims=2,
    )
    default = layouts.text(client.owned(it.layout, "GetDefaultLayout: layout"))
    own = layouts.call("PJRT_Buffer_MemoryLayout", buffer=client.buffer(range(6), (2, 3)))
    actual = layouts.text(client.owned(own.layout, "Buffer_MemoryLayout: layout"))
    expect(sorted(_order(default)) == sorted("0,1"), f"the default layout is {default!r}")
    expect(_order(default) == _order(actual), f"a buffer's is {actual}, the default {default}")


@check
def layout_is_freed(client: Client) -> None:
    """Free the layout of a buffer, and have it again."""
    layouts, buffer = _Layouts(client), client.buffer(range(6), (2, 3))
    texts = []
    for _ in range(2):
        it = layouts.call("PJRT_Buffer_MemoryLayout", buffer=buffer)
        texts.append(layouts.text(it.layout))
        layouts.call("MemoryLayout_Destroy", layout=it.layout)
    expect(texts[0] == texts[1], f"its layout is {texts[0]}, then {texts[1]}")


@check
def layouts_of_outputs(client: Client) -> None:
    """State the layout of each output of a program."""
    layouts = _Layouts(client)
    executable = client.executable(client.compiled(TWO))
    it = layouts.call("PJRT_Executable_GetOutputLayouts", executable=executable)
    expect(it.num_outputs == 2, f"it states the layouts of {it.num_outputs} outputs, of 2")
    for each in client.api.pointers(it.layouts, 2, "layouts"):
        layouts.text(each)


@check
def layouts_of_parameters(client: Client) -> None:
    """State the layout of each parameter of a program."""
    layouts = _Layouts(client)
    executable = client.executable(client.compiled())
    it = layouts.call("PJRT_Executable_GetParameterLayouts", executable=executable)
    expect(it.num_parameters == 2, f"it states the layouts of {it.num_parameters}, of 2")
    for each in client.api.pointers(it.layouts, 2, "layouts"):
        layouts.text(each)


@check
def memory_descriptions(client: Client) -> None:
    """Describe the memories of a device that is only described."""
    abi = client.api.abi
    description = client.description(client.device)
    extension = client.api.plugin.extension("MemoryDescriptions")
    if extension is None:
        raise UnsupportedError("it has no extension that describes memories")
    table = abi.PJRT_MemoryDescriptions_Extension.from_address(extension.address)
    struct = client.api.struct(
        "PJRT_DeviceDescription_MemoryDescriptions_Args", device_description=description
    )
    address = table.PJRT_DeviceDescription_MemoryDescriptions
    error = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(address)(ctypes.byref(struct))
    if error:
        raise client.api.take("PJRT_DeviceDescription_MemoryDescriptions", error)
    client.api.pointers(
        struct.memory_descriptions, struct.num_memory_descriptions, "memory_descriptions"
    )
