"""Programs: compiled, described, serialized, loaded and deleted."""

from __future__ import annotations

import ctypes
from typing import Any

from harness.conformance.c_api.client import ADD, Client
from harness.conformance.plugin_check import (
    NotMeasurableError,
    UnsupportedError,
    check,
    checks,
    expect,
)

TWO = """module @two {
  func.func public @main(%a: tensor<2x3xf32>) -> (tensor<3x2xf32>, tensor<i32>) {
    %0 = stablehlo.transpose %a, dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
    %1 = stablehlo.constant dense<7> : tensor<i32>
    return %0, %1 : tensor<3x2xf32>, tensor<i32>
  }
}
"""
_HALVED = ADD.replace("stablehlo.add", "stablehlo.subtract")


def _refused(client: Client, code: str | bytes, form: bytes = b"mlir") -> None:
    it = client.api.arguments(
        "PJRT_Client_Compile",
        client=client.handle,
        program=client.program(code, form),
        compile_options=client.compile_options(),
    )
    error = client.api.refusal("PJRT_Client_Compile", it)
    expect(error is not None, "it was compiled")
    assert error is not None
    expect(error.message, "the error has no message")


@check
def compiled(client: Client) -> None:
    """Compile StableHLO in text."""
    client.compiled()


@check
def named(client: Client) -> None:
    """Name a program, the same each time."""
    executable = client.executable(client.compiled())
    names = []
    for _ in range(2):
        it = client.api.call("PJRT_Executable_Name", executable=executable)
        names.append(client.api.text(it.executable_name, it.executable_name_size, "its name"))
    expect(names[0], "a program has no name")
    expect(names[0] == names[1], f"its name is {names[0]!r}, then {names[1]!r}")


@checks(
    {
        "nonsense": ("this is no program",),
        "empty": ("",),
        "half_a_module": (ADD[: len(ADD) // 2],),
        "wrong_types": (ADD.replace("%b: tensor<4xf32>", "%b: tensor<5xf32>"),),
        "no_operator": (ADD.replace("stablehlo.add", "stablehlo.no_such_operator"),),
        "bytes": (bytes(range(256)),),
        "damaged_bytecode": (b"ML\xefR" + bytes(64),),
    }
)
def refused(client: Client, code: str | bytes) -> None:
    """Refuse what is no program with an error."""
    _refused(client, code)


@check
def unknown_format(client: Client) -> None:
    """Refuse a program in a format that nobody knows."""
    _refused(client, ADD, b"no_such_format")


@check
def damaged_options(client: Client) -> None:
    """Refuse compile options that can't be read."""
    it = client.api.arguments(
        "PJRT_Client_Compile",
        client=client.handle,
        program=client.program(),
        compile_options=b"\xff" * 32,
    )
    error = client.api.refusal("PJRT_Client_Compile", it)
    expect(error is not None, "options that can't be read were taken")


@check
def replicas_and_partitions(client: Client) -> None:
    """State one replica and one partition of a program for one device."""
    executable = client.executable(client.compiled())
    for kind in ("replicas", "partitions"):
        function = f"PJRT_Executable_Num{kind.capitalize()}"
        count = getattr(client.api.call(function, executable=executable), f"num_{kind}")
        expect(count == 1, f"it has {count} {kind}")


@check
def outputs(client: Client) -> None:
    """State how many outputs a program has, of which types and shapes."""
    api, executable = client.api, client.executable(client.compiled(TWO))
    count = api.call("PJRT_Executable_NumOutputs", executable=executable).num_outputs
    expect(count == 2, f"it has {count} outputs, of 2")
    it = api.call("PJRT_Executable_OutputElementTypes", executable=executable)
    expected = [api.abi.PJRT_Buffer_Type_F32, api.abi.PJRT_Buffer_Type_S32]
    expect(it.num_output_types == 2, f"it states {it.num_output_types} types")
    types = [*memoryview(api.content(it.output_types, 8, "output_types")).cast("I")]
    expect(types == expected, f"the types of the outputs are {types}, expected {expected}")
    it = api.call("PJRT_Executable_OutputDimensions", executable=executable)
    expect(it.num_outputs == 2, f"it states the shapes of {it.num_outputs} outputs")
    ranks = api.integers(it.dim_sizes, 2, "dim_sizes", kind="Q")
    expect(ranks == [2, 0], f"the outputs have {ranks} dimensions")
    sizes = api.integers(it.dims, 2, "dims")
    expect(sizes == [3, 2], f"the sizes of the dimensions are {sizes}")


@checks(
    {
        "outputs": ("PJRT_Executable_OutputMemoryKinds", "num_outputs", 2),
        "parameters": ("PJRT_Executable_ParameterMemoryKinds", "num_parameters", 1),
    }
)
def memory_kinds(client: Client, function: str, field: str, expected: int) -> None:
    """State in which kind of memory each output or parameter of a program is."""
    it = client.api.call(function, executable=client.executable(client.compiled(TWO)))
    count = getattr(it, field)
    expect(count == expected, f"it states the kinds of {count}, of {expected}")
    names = client.api.pointers(it.memory_kinds, count, "memory_kinds")
    sizes = client.api.integers(it.memory_kind_sizes, count, "sizes", kind="Q")
    kinds = [client.api.text(name, size, "a kind") for name, size in zip(names, sizes, strict=True)]
    known = {client.kind(memory) for memory in client.memories(client.device)}
    expect(set(kinds) <= known, f"they are in {kinds}, and the device has {sorted(known)}")


@check
def code_size(client: Client) -> None:
    """State the size of a program's code, or -1 where it is not known."""
    it = client.api.call(
        "PJRT_Executable_SizeOfGeneratedCodeInBytes",
        executable=client.executable(client.compiled()),
    )
    expect(it.size_in_bytes >= -1, f"the code has {it.size_in_bytes} bytes")


@check
def cost(client: Client) -> None:
    """Return an analysis of the cost whose entries have names, types and values."""
    it = client.api.call(
        "PJRT_Executable_GetCostAnalysis", executable=client.executable(client.compiled())
    )
    client.api.named_values(it.properties, it.num_properties, "PJRT_Executable_GetCostAnalysis")


@check
def memory(client: Client) -> None:
    """State how many bytes a program's arguments and outputs need, at least their own."""
    it = client.api.call(
        "PJRT_Executable_GetCompiledMemoryStats", executable=client.executable(client.compiled())
    )
    needed, given = it.argument_size_in_bytes, it.output_size_in_bytes
    expect(needed >= 32, f"two arguments of 16 bytes need {needed}")
    expect(given >= 16, f"an output of 16 bytes needs {given}")
    expect(it.temp_size_in_bytes >= 0, f"{it.temp_size_in_bytes} bytes are temporary")


@check
def optimized(client: Client) -> None:
    """Return the optimized program: its size first, and then the text."""
    api, executable = client.api, client.executable(client.compiled())
    program = api.struct("PJRT_Program")
    api.call("PJRT_Executable_OptimizedProgram", executable=executable, program=program)
    expect(program.code_size, "the optimized program has no bytes")
    form = api.text(program.format, program.format_size, "the format")
    expect(form in ("hlo", "hlo_with_config", "mlir"), f"its format is {form!r}")
    memory_ = ctypes.create_string_buffer(program.code_size)
    program.code = ctypes.addressof(memory_)
    api.call("PJRT_Executable_OptimizedProgram", executable=executable, program=program)
    expect(any(memory_.raw), "the optimized program is nothing but zeros")


@check
def fingerprint(client: Client) -> None:
    """Give equal programs one fingerprint, and different ones different ones."""
    texts = []
    for code in (ADD, ADD, _HALVED):
        it = client.api.call(
            "PJRT_Executable_Fingerprint", executable=client.executable(client.compiled(code))
        )
        size = it.executable_fingerprint_size
        texts.append(client.api.content(it.executable_fingerprint, size, "the fingerprint"))
    if not any(texts):
        raise UnsupportedError("fingerprints are empty")
    expect(texts[0] == texts[1], "the fingerprints of one program, compiled twice, differ")
    expect(texts[0] != texts[2], "two programs have one fingerprint")


def serialized(client: Client, loaded: int) -> bytes:
    """Return a program as bytes, and free what the plugin has made for them."""
    it = client.api.call("PJRT_Executable_Serialize", executable=client.executable(loaded))
    data = client.api.content(it.serialized_bytes, it.serialized_bytes_size, "serialized_bytes")
    expect(data, "a serialized program has no bytes")
    name = "serialized_executable_deleter"
    client.api.free(it.serialized_executable_deleter, it.serialized_executable, name)
    return data


def _load(client: Client, data: bytes) -> Any:
    return client.api.arguments(
        "PJRT_Executable_DeserializeAndLoad", client=client.handle, serialized_executable=data
    )


@check
def loaded_again(client: Client) -> None:
    """Serialize a program, load it and run it."""
    request = _load(client, serialized(client, client.compiled()))
    client.api.finish("PJRT_Executable_DeserializeAndLoad", request)
    loaded = client.owned(request.loaded_executable, "loaded_executable")
    value = client.buffer()
    (output,) = client.run(loaded, [value, value])
    expect(client.values(output) == [2, 4, 6, 8], f"it returns {client.values(output)}")


@checks({"nonsense": (b"this is no program",), "empty": (b"",), "zeros": (bytes(4096),)})
def not_loaded(client: Client, data: bytes) -> None:
    """Refuse bytes that are no program."""
    if client.api.lacks("PJRT_Executable_DeserializeAndLoad"):
        raise UnsupportedError(client.api.lacks("PJRT_Executable_DeserializeAndLoad"))
    error = client.api.refusal("PJRT_Executable_DeserializeAndLoad", _load(client, data))
    expect(error is not None, "they were loaded")


@check
def half_not_loaded(client: Client) -> None:
    """Refuse half of a serialized program."""
    data = serialized(client, client.compiled())
    error = client.api.refusal(
        "PJRT_Executable_DeserializeAndLoad", _load(client, data[: len(data) // 2])
    )
    expect(error is not None, "half a program was loaded")


@check
def devices(client: Client) -> None:
    """List the one device that a program for one device runs on."""
    it = client.api.call("PJRT_LoadedExecutable_AddressableDevices", executable=client.compiled())
    own = client.api.pointers(it.addressable_devices, it.num_addressable_devices, "its devices")
    expect(len(own) == 1, f"it runs on {len(own)} devices")
    expect(own[0] in client.addressable, "it runs on a device that the client can't use")


@check
def deleted(client: Client) -> None:
    """Call a program deleted once it was, and not before."""
    loaded = client.compiled()
    for expected in (False, True):
        it = client.api.call("PJRT_LoadedExecutable_IsDeleted", executable=loaded)
        expect(bool(it.is_deleted) == expected, f"is_deleted is {bool(it.is_deleted)}")
        if not expected:
            client.api.call("PJRT_LoadedExecutable_Delete", executable=loaded)


@checks(
    {
        "executable": ("PJRT_Executable_Destroy",),
        "loaded": ("PJRT_LoadedExecutable_Destroy",),
    }
)
def destroy_nothing(client: Client, function: str) -> None:
    """Accept null where a program is destroyed."""
    client.initialize()
    client.api.call(function, executable=None)


@checks(
    {
        "compile_options": ("PJRT_Executable_GetCompileOptions", "serialized_compile_options"),
        "assignment": ("PJRT_LoadedExecutable_GetDeviceAssignment", "serialized_device_assignment"),
    }
)
def serialized_part(client: Client, function: str, owner: str) -> None:
    """Return what a program was compiled with as bytes, and free them."""
    loaded = client.compiled()
    own = loaded if "Loaded" in function else client.executable(loaded)
    it = client.api.call(function, executable=own)
    client.api.content(it.serialized_bytes, it.serialized_bytes_size, "serialized_bytes")
    deleter = f"{owner}_deleter"
    client.api.free(getattr(it, deleter), getattr(it, owner), deleter)


@check
def logical_ids(client: Client) -> None:
    """State the logical ids of a program's devices, as many as there are devices."""
    it = client.api.call(
        "PJRT_LoadedExecutable_AddressableDeviceLogicalIds", executable=client.compiled()
    )
    expect(
        it.num_addressable_device_logical_ids == 1,
        f"it states {it.num_addressable_device_logical_ids} ids for one device",
    )


@check
def for_another_device(client: Client) -> None:
    """Compile for the device that the options assign."""
    _, other = client.two_devices()
    number = client.device_id(other)
    if number > 127:  # else it is one byte below
        raise NotMeasurableError(f"the second device has id {number}")
    # DeviceAssignmentProto: one replica, one computation, on that device.
    assignment = bytes([0x08, 1, 0x10, 1, 0x1A, 3, 0x0A, 1, number])
    loaded = client.compiled(device_assignment=assignment)
    it = client.api.call("PJRT_LoadedExecutable_AddressableDevices", executable=loaded)
    own = client.api.pointers(it.addressable_devices, it.num_addressable_devices, "its devices")
    expect(own == [other], "it runs on another device than it was assigned")
