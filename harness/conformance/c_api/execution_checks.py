"""Executions: results, wrong arguments, donation, many at once, and where they run."""

from __future__ import annotations

import ctypes
import struct

from harness.conformance.c_api.api import int64s
from harness.conformance.c_api.client import ADD, Client, floats
from harness.conformance.c_api.event_checks import LONG
from harness.conformance.c_api.executable_checks import TWO
from harness.conformance.plugin_check import NotMeasurableError, check, checks, expect

# The result is returned in the memory of the first argument.
DONATED = """module @donated {
  func.func public @main(%a: tensor<4xf32> {tf.aliasing_output = 0 : i32}, %b: tensor<4xf32>)
      -> tensor<4xf32> {
    %0 = stablehlo.add %a, %b : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
"""
_CONSTANT = """module @constant {
  func.func public @main() -> tensor<2xf32> {
    %0 = stablehlo.constant dense<[1.5, 2.5]> : tensor<2xf32>
    return %0 : tensor<2xf32>
  }
}
"""
_NOTHING = """module @nothing {
  func.func public @main(%a: tensor<4xf32>) {
    return
  }
}
"""
_NUMBERED = """module @numbered {
  func.func public @main(%a: tensor<2x3xf32>, %b: tensor<3x2xf32>) -> tensor<2x2xf32> {
    %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
      : (tensor<2x3xf32>, tensor<3x2xf32>) -> tensor<2x2xf32>
    return %0 : tensor<2x2xf32>
  }
}
"""


def _sum(client: Client, loaded: int, expected: list[float] | None = None) -> None:
    """Raise NonconformanceError unless a program adds two buffers rightly."""
    first, other = client.buffer([1, 2, 3, 4]), client.buffer([10, 20, 30, 40])
    (output,) = client.run(loaded, [first, other])
    actual, expected = client.values(output), expected or [11, 22, 33, 44]
    expect(actual == expected, f"it returns {actual}, expected {expected}")


@check
def result(client: Client) -> None:
    """Add two arrays."""
    _sum(client, client.compiled())


@check
def order_of_arguments(client: Client) -> None:
    """Multiply two matrices of different shapes."""
    first, other = client.buffer(range(6), (2, 3)), client.buffer(range(6), (3, 2))
    (output,) = client.run(client.compiled(_NUMBERED), [first, other])
    expect(client.values(output) == [10, 13, 28, 40], f"it returns {client.values(output)}")


@check
def several_outputs(client: Client) -> None:
    """Return two arrays in their order, each with its own type and shape."""
    outputs = client.run(client.compiled(TWO), [client.buffer(range(6), (2, 3))], 2)
    expect(client.values(outputs[0]) == [0, 3, 1, 4, 2, 5], f"{client.values(outputs[0])}")
    data = client.content(outputs[1])
    expect(data == struct.pack("=i", 7), f"the second output is {data.hex()}")


@check
def no_argument(client: Client) -> None:
    """Run a program without arguments."""
    (output,) = client.run(client.compiled(_CONSTANT), [])
    expect(client.values(output) == [1.5, 2.5], f"it returns {client.values(output)}")


@check
def no_output(client: Client) -> None:
    """Run a program without outputs."""
    client.run(client.compiled(_NOTHING), [client.buffer()], 0)


@check
def again(client: Client) -> None:
    """Run a program a hundred times, each with the last one's output."""
    loaded, value, first = (
        client.compiled(),
        client.buffer([0, 0, 0, 0]),
        client.buffer([1, 2, 3, 4]),
    )
    for _ in range(100):
        (value,) = client.run(loaded, [value, first])
    expect(client.values(value) == [100, 200, 300, 400], f"it is {client.values(value)}")


@check
def many_under_way(client: Client) -> None:
    """Start a hundred executions before the first is awaited."""
    loaded, value, first = (
        client.compiled(),
        client.buffer([0, 0, 0, 0]),
        client.buffer([1, 2, 3, 4]),
    )
    events = []
    for _ in range(100):
        request = client.execution(loaded, [value, first])
        client.api.finish("PJRT_LoadedExecutable_Execute", request)
        value = client.owned(request.outputs[0], "an output")
        events.append(request.events[0])
    for event in events:
        client.settle(event)
    expect(client.values(value) == [100, 200, 300, 400], f"it is {client.values(value)}")


@check
def without_an_event(client: Client) -> None:
    """Run a program where no event was asked for."""
    loaded, value = client.compiled(), client.buffer()
    request = client.execution(loaded, [value, value])
    request.device_complete_events = None
    client.api.finish("PJRT_LoadedExecutable_Execute", request)
    expect(client.values(request.outputs[0]) == [2, 4, 6, 8], "its result is wrong")


@check
def output_is_described(client: Client) -> None:
    """Give an output the type, the shape and the device of the program's result."""
    outputs = client.run(client.compiled(TWO), [client.buffer(range(6), (2, 3))], 2)
    api = client.api
    it = api.call("PJRT_Buffer_Dimensions", buffer=outputs[0])
    sizes = api.integers(it.dims, it.num_dims, "dims")
    expect(sizes == [3, 2], f"its dimensions are {sizes}")
    it = api.call("PJRT_Buffer_ElementType", buffer=outputs[1])
    expect(it.type == api.abi.PJRT_Buffer_Type_S32, f"its type is number {it.type}")
    it = api.call("PJRT_Buffer_Device", buffer=outputs[0])
    expect(it.device in client.addressable, "it is on a device that the client can't use")
    expect(not client.is_deleted(outputs[0]), "an output is deleted")


@check
def output_outlives_program(client: Client) -> None:
    """Keep an output after the program and the arguments were destroyed."""
    loaded, value = client.compiled(), client.buffer()
    request = client.execution(loaded, [value, value])
    client.api.finish("PJRT_LoadedExecutable_Execute", request)
    client.api.call("PJRT_Buffer_Destroy", buffer=value)
    client.api.call("PJRT_LoadedExecutable_Destroy", executable=loaded)
    client.settle(request.events[0])
    expect(client.values(request.outputs[0]) == [2, 4, 6, 8], "its numbers have changed")


@check
def deleted_while_it_runs(client: Client) -> None:
    """Finish a program whose argument is deleted while it runs."""
    value = client.buffer([0.01] * 65536, (256, 256))
    request = client.execution(client.compiled(LONG), [value])
    client.api.finish("PJRT_LoadedExecutable_Execute", request)
    client.api.call("PJRT_Buffer_Delete", buffer=value)
    client.settle(request.events[0])
    expect(len(client.content(request.outputs[0])) == 4 << 16, "its result has another size")


@checks(
    {
        "too_few": (1, [1, 2, 3, 4]),
        "too_many": (3, [1, 2, 3, 4]),
        "larger": (2, [1, 2, 3, 4, 5]),
        "smaller": (2, [1]),
    }
)
def wrong_arguments(client: Client, count: int, values: list[float]) -> None:
    """Refuse arguments that are not the program's, at once or by the event."""
    loaded = client.compiled()
    request = client.execution(loaded, [client.buffer(values) for _ in range(count)])
    client.expect_refusal(
        "PJRT_LoadedExecutable_Execute",
        request,
        f"it ran with {count} arguments of {len(values)} numbers, of 2 of 4",
    )
    _sum(client, loaded)


@check
def deleted_argument(client: Client) -> None:
    """Refuse an argument that was deleted."""
    loaded, value, other = client.compiled(), client.buffer(), client.buffer()
    client.api.call("PJRT_Buffer_Delete", buffer=value)
    request = client.execution(loaded, [value, other])
    client.expect_refusal(
        "PJRT_LoadedExecutable_Execute", request, "it ran with a deleted argument"
    )
    expect(not client.is_deleted(other), "the other argument is deleted, too")


@check
def donated(client: Client) -> None:
    """Delete an argument that the program returns its result in, and no other."""
    loaded, first, other = client.compiled(DONATED), client.buffer(), client.buffer()
    (output,) = client.run(loaded, [first, other])
    expect(client.values(output) == [2, 4, 6, 8], f"it returns {client.values(output)}")
    expect(client.is_deleted(first), "an argument that was donated is still there")
    expect(not client.is_deleted(other), "an argument that was not donated is deleted")


@check
def used_after_donation(client: Client) -> None:
    """Refuse an argument that was donated before."""
    loaded, first, other = client.compiled(DONATED), client.buffer(), client.buffer()
    client.run(loaded, [first, other])
    request = client.execution(loaded, [first, other])
    client.expect_refusal(
        "PJRT_LoadedExecutable_Execute", request, "it ran with an argument that was donated before"
    )


@check
def not_donated(client: Client) -> None:
    """Keep an argument that the caller says must not be donated, with its numbers."""
    loaded, first, other = client.compiled(DONATED), client.buffer(), client.buffer()
    kept = int64s([0])
    (output,) = client.run(
        loaded, [first, other], non_donatable_input_indices=kept, num_non_donatable_input_indices=1
    )
    expect(client.values(output) == [2, 4, 6, 8], f"it returns {client.values(output)}")
    expect(not client.is_deleted(first), "an argument is deleted that must not be donated")
    expect(client.values(first) == [1, 2, 3, 4], "an argument was written to that must not be")


@check
def donated_twice(client: Client) -> None:
    """Refuse or copy a buffer that is both a donated argument and another one."""
    loaded, first = client.compiled(DONATED), client.buffer()
    request = client.execution(loaded, [first, first])
    error = client.api.refusal("PJRT_LoadedExecutable_Execute", request)
    if error is not None:
        return
    try:
        client.settle(request.events[0])
    except Exception:
        return
    expect(client.values(request.outputs[0]) == [2, 4, 6, 8], "its result is wrong")


@check
def held_argument_is_not_written(client: Client) -> None:
    """Write no result over a donated argument that somebody holds."""
    loaded, first, other = client.compiled(DONATED), client.buffer(), client.buffer()
    client.api.call("PJRT_Buffer_IncreaseExternalReferenceCount", buffer=first)
    it = client.api.call("PJRT_Buffer_OpaqueDeviceMemoryDataPointer", buffer=first)
    if not client.api.call("PJRT_Buffer_IsOnCpu", buffer=first).is_on_cpu:
        raise NotMeasurableError("the host can't look into the device's memory")
    request = client.execution(loaded, [first, other])
    if client.api.refusal("PJRT_LoadedExecutable_Execute", request) is not None:
        return
    client.settle(request.events[0])
    data = ctypes.string_at(it.device_memory_ptr, 16)
    expect(data == floats([1, 2, 3, 4]), "an argument that is held was written to")


@check
def on_a_named_device(client: Client) -> None:
    """Run a portable program on each device that the caller names."""
    loaded = client.compiled(ADD, compile_portable_executable=True)
    for device in client.addressable[:4]:
        value = client.from_host(floats([1, 2, 3, 4]), (4,), device=device).buffer
        request = client.execution(loaded, [value, value])
        request.execute_device = device
        client.api.finish("PJRT_LoadedExecutable_Execute", request)
        client.settle(request.events[0])
        own = client.api.call("PJRT_Buffer_Device", buffer=request.outputs[0]).device
        expect(own == device, f"the result is on device {client.device_id(own)}")
        expect(client.values(request.outputs[0]) == [2, 4, 6, 8], "its result is wrong")


@check
def on_another_device(client: Client) -> None:
    """Refuse an argument that is on another device than the program."""
    _, other = client.two_devices()
    loaded = client.compiled()
    value = client.from_host(floats([1, 2, 3, 4]), (4,), device=other).buffer
    it = client.api.call("PJRT_LoadedExecutable_AddressableDevices", executable=loaded)
    own = client.api.pointers(it.addressable_devices, it.num_addressable_devices, "its devices")
    if own == [other]:
        raise NotMeasurableError("the program runs on the second device")
    request = client.execution(loaded, [value, value])
    error = client.api.refusal("PJRT_LoadedExecutable_Execute", request)
    expect(error is not None, "it ran with arguments of another device")


@check
def context(client: Client) -> None:
    """Make a context of executions, and free it."""
    it = client.api.call("PJRT_ExecuteContext_Create")
    expect(it.context, "PJRT_ExecuteContext_Create: context is null")
    client.api.call("PJRT_ExecuteContext_Destroy", context=it.context)


@check
def two_programs(client: Client) -> None:
    """Keep two programs apart."""
    adds = client.compiled()
    other = client.compiled(ADD.replace("stablehlo.add", "stablehlo.multiply"))
    _sum(client, adds)
    _sum(client, other, [10, 40, 90, 160])
    _sum(client, adds)
