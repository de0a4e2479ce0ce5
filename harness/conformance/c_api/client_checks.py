"""Clients: what they are called, which devices they have, several of them, and their end."""

from __future__ import annotations

import ctypes

from harness.conformance.c_api.client import Client
from harness.conformance.plugin_check import NotMeasurableError, check, expect


@check
def created(client: Client) -> None:
    """Create a client and destroy it."""
    client.api.call("PJRT_Client_Destroy", client=client.handle)


@check
def platform_name(client: Client) -> None:
    """Name the platform, the same each time."""
    names = []
    for _ in range(2):
        it = client.api.call("PJRT_Client_PlatformName", client=client.handle)
        names.append(client.api.text(it.platform_name, it.platform_name_size, "platform_name"))
    expect(names[0].strip(), "the platform has no name")
    expect(names[0] == names[1], f"the platform is {names[0]}, then {names[1]}")


@check
def platform_version(client: Client) -> None:
    """State the platform's version, which may be empty."""
    it = client.api.call("PJRT_Client_PlatformVersion", client=client.handle)
    client.api.text(it.platform_version, it.platform_version_size, "platform_version")


@check
def process_index(client: Client) -> None:
    """Give the only process the number 0."""
    it = client.api.call("PJRT_Client_ProcessIndex", client=client.handle)
    expect(it.process_index == 0, f"the index of the only process is {it.process_index}")


@check
def devices(client: Client) -> None:
    """List the same devices in the same order each time, with the ones it can use among them."""
    first = client.devices
    expect(first, "there is no device")
    expect(len(set(first)) == len(first), "a device is listed twice")
    it = client.api.call("PJRT_Client_Devices", client=client.handle)
    again = client.api.pointers(it.devices, it.num_devices, "PJRT_Client_Devices")
    expect(again == first, "the devices, or their order, changed")
    others = set(client.addressable) - set(first)
    expect(not others, "a device that it can use is not among all devices")


@check
def ids(client: Client) -> None:
    """Give each device an id of its own."""
    numbers = [client.device_id(device) for device in client.devices]
    expect(len(set(numbers)) == len(numbers), f"the ids of the devices are {numbers}")


@check
def look_up(client: Client) -> None:
    """Find each device by its id."""
    for device in client.devices:
        number = client.device_id(device)
        it = client.api.call("PJRT_Client_LookupDevice", client=client.handle, id=number)
        expect(it.device == device, f"id {number} finds another device than the one that has it")


@check
def look_up_by_hardware(client: Client) -> None:
    """Find each device that it can use by the number of its hardware."""
    for device in client.addressable:
        number = client.api.call("PJRT_Device_LocalHardwareId", device=device).local_hardware_id
        if number == -1:
            raise NotMeasurableError("the number of a device's hardware is not defined (-1)")
        it = client.api.call(
            "PJRT_Client_LookupAddressableDevice", client=client.handle, local_hardware_id=number
        )
        expect(it.addressable_device == device, f"number {number} finds another device")


@check
def look_up_nothing(client: Client) -> None:
    """Refuse an id that no device has."""
    it = client.api.arguments("PJRT_Client_LookupDevice", client=client.handle, id=987654321)
    error = client.api.refusal("PJRT_Client_LookupDevice", it)
    expect(error is not None, "a device with id 987654321 was found")


@check
def look_up_no_hardware(client: Client) -> None:
    """Refuse a number that no hardware has."""
    it = client.api.arguments(
        "PJRT_Client_LookupAddressableDevice", client=client.handle, local_hardware_id=987654321
    )
    error = client.api.refusal("PJRT_Client_LookupAddressableDevice", it)
    expect(error is not None, "hardware number 987654321 was found")


@check
def memories(client: Client) -> None:
    """List all memories, with those of each device among them."""
    it = client.api.call("PJRT_Client_AddressableMemories", client=client.handle)
    listed = client.api.pointers(
        it.addressable_memories, it.num_addressable_memories, "PJRT_Client_AddressableMemories"
    )
    expect(len(set(listed)) == len(listed), "a memory is listed twice")
    for device in client.addressable:
        others = set(client.memories(device)) - set(listed)
        expect(not others, "a memory of a device is not among the client's")


@check
def two_clients(client: Client) -> None:
    """Go on with a client after another one was destroyed, or refuse a second one."""
    loaded, value = client.compiled(), client.buffer()
    it = client.api.arguments("PJRT_Client_Create")
    error = client.api.refusal("PJRT_Client_Create", it)
    if error is not None:
        raise NotMeasurableError(f"it allows one client at a time: {error.message[:200]}")
    expect(it.client and it.client != client.handle, "two clients are one and the same")
    client.api.call("PJRT_Client_Destroy", client=it.client)
    (output,) = client.run(loaded, [value, value])
    expect(client.values(output) == [2, 4, 6, 8], "a result is wrong after another client's end")


@check
def one_after_another(client: Client) -> None:
    """Create a client, use it and destroy it, three times."""
    client.initialize()
    for _ in range(3):
        own = Client(client.api, client.options, client.missing)
        own.__dict__["handle"] = own.created()
        value, loaded = own.buffer(), own.compiled()
        (output,) = own.run(loaded, [value, value])
        expect(own.values(output) == [2, 4, 6, 8], "a program's result is wrong")
        for buffer in (value, output):
            own.api.call("PJRT_Buffer_Destroy", buffer=buffer)
        own.api.call("PJRT_LoadedExecutable_Destroy", executable=loaded)
        own.api.call("PJRT_Client_Destroy", client=own.handle)


@check
def destroy_nothing(client: Client) -> None:
    """Accept null where a client is destroyed."""
    client.initialize()
    client.api.call("PJRT_Client_Destroy", client=None)


@check
def default_assignment(client: Client) -> None:
    """Assign each replica and partition a device of its own."""
    count = len(client.addressable)
    ids = (ctypes.c_int * count)(*[-1] * count)
    client.api.call(
        "PJRT_Client_DefaultDeviceAssignment",
        client=client.handle,
        num_replicas=count,
        num_partitions=1,
        default_assignment=ids,
        default_assignment_size=count,
    )
    known = {client.device_id(device) for device in client.devices}
    expect(set(ids) <= known and len(set(ids)) == count, f"{count} replicas are on {list(ids)}")


@check
def default_assignment_too_small(client: Client) -> None:
    """Refuse an array that is too small for the assignment."""
    ids = (ctypes.c_int * 2)(-1, -1)
    it = client.api.arguments(
        "PJRT_Client_DefaultDeviceAssignment",
        client=client.handle,
        num_replicas=1,
        num_partitions=1,
        default_assignment=ids,
    )
    error = client.api.refusal("PJRT_Client_DefaultDeviceAssignment", it)
    expect(error is not None, "an array of size 0 was enough for one replica")
    expect(list(ids) == [-1, -1], "an array of size 0 was written to")
