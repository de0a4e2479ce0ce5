"""Devices, their descriptions and their memories."""

from __future__ import annotations

from harness.conformance.c_api.client import Client
from harness.conformance.plugin_check import NotMeasurableError, check, checks, expect


@checks(
    {
        "kind": ("PJRT_DeviceDescription_Kind", "device_kind"),
        "debug_string": ("PJRT_DeviceDescription_DebugString", "debug_string"),
        "to_string": ("PJRT_DeviceDescription_ToString", "to_string"),
    }
)
def text_of(client: Client, function: str, field: str) -> None:
    """Describe each device in text, the same each time."""
    for device in client.devices:
        texts = []
        for _ in range(2):
            it = client.api.call(function, device_description=client.description(device))
            texts.append(client.api.text(getattr(it, field), getattr(it, f"{field}_size"), field))
        expect(texts[0], f"{field} of a device is empty")
        expect(texts[0] == texts[1], f"{field} is {texts[0]!r}, then {texts[1]!r}")


@check
def attributes(client: Client) -> None:
    """Return attributes of each device that have names, types and values."""
    for device in client.devices:
        it = client.api.call(
            "PJRT_DeviceDescription_Attributes", device_description=client.description(device)
        )
        client.api.named_values(
            it.attributes, it.num_attributes, "PJRT_DeviceDescription_Attributes"
        )


@check
def same_description(client: Client) -> None:
    """Return the same description of a device each time, and another one of another device."""
    ones = [client.description(device) for device in client.devices]
    expect(len(set(ones)) == len(ones), "two devices have one description")
    expect(
        [client.description(d) for d in client.devices] == ones, "a device's description changed"
    )


@check
def process(client: Client) -> None:
    """Say that every device belongs to the only process."""
    for device in client.devices:
        it = client.api.call(
            "PJRT_DeviceDescription_ProcessIndex", device_description=client.description(device)
        )
        expect(it.process_index == 0, f"a device belongs to process {it.process_index} of one")


@check
def addressable(client: Client) -> None:
    """Call a device addressable exactly if it is listed as such."""
    for device in client.devices:
        it = client.api.call("PJRT_Device_IsAddressable", device=device)
        listed = device in client.addressable
        expect(bool(it.is_addressable) == listed, f"is_addressable is {it.is_addressable}")


@check
def hardware_numbers(client: Client) -> None:
    """Give the hardware of each device that it can use a number of its own, or -1."""
    numbers = [
        client.api.call("PJRT_Device_LocalHardwareId", device=device).local_hardware_id
        for device in client.addressable
    ]
    defined = [number for number in numbers if number != -1]
    expect(all(n >= 0 for n in defined), f"the numbers of the hardware are {numbers}")
    expect(len(set(defined)) == len(defined), f"the numbers of the hardware are {numbers}")


@check
def default_memory(client: Client) -> None:
    """Choose a device's default memory among those that the device can use."""
    for device in client.addressable:
        it = client.api.call("PJRT_Device_DefaultMemory", device=device)
        expect(it.memory, "a device's default memory is null")
        expect(it.memory in client.memories(device), "a device can't use its default memory")


@check
def memories_of_a_device(client: Client) -> None:
    """Say of each memory that the device which lists it can use it."""
    for device in client.addressable:
        for memory in client.memories(device):
            it = client.api.call("PJRT_Memory_AddressableByDevices", memory=memory)
            users = client.api.pointers(
                it.devices, it.num_devices, "PJRT_Memory_AddressableByDevices"
            )
            expect(device in users, f"memory {client.kind(memory)} leaves out a device that has it")


@check
def memory_ids(client: Client) -> None:
    """Give each memory an id of its own."""
    memories = {memory for device in client.addressable for memory in client.memories(device)}
    numbers = [client.api.call("PJRT_Memory_Id", memory=memory).id for memory in memories]
    expect(len(set(numbers)) == len(numbers), f"the ids of the memories are {sorted(numbers)}")


@check
def memory_kinds(client: Client) -> None:
    """Name each memory's kind, and give equal kinds equal numbers."""
    kinds = dict[str, int]()
    for device in client.addressable:
        own = [client.kind(memory) for memory in client.memories(device)]
        expect(all(own), "a memory has no kind")
        expect(len(set(own)) == len(own), f"a device has two memories of one kind: {own}")
        for memory, kind in zip(client.memories(device), own, strict=True):
            number = int(client.api.call("PJRT_Memory_Kind_Id", memory=memory).kind_id)
            expect(
                kinds.setdefault(kind, number) == number,
                f"kind {kind} is number {kinds[kind]}, {number}",
            )
    expect(len(set(kinds.values())) == len(kinds), f"two kinds share a number: {kinds}")


@checks(
    {
        "debug_string": ("PJRT_Memory_DebugString", "debug_string"),
        "to_string": ("PJRT_Memory_ToString", "to_string"),
    }
)
def text_of_memory(client: Client, function: str, field: str) -> None:
    """Describe each memory in text."""
    for memory in client.memories(client.device):
        it = client.api.call(function, memory=memory)
        text = client.api.text(getattr(it, field), getattr(it, f"{field}_size"), field)
        expect(text, f"{field} of a memory is empty")


@check
def order_of_memories(client: Client) -> None:
    """List a device's memories in the same order each time."""
    first = client.memories(client.device)
    expect(client.memories(client.device) == first, "the order of a device's memories changed")


@check
def memory_stats(client: Client) -> None:
    """Count the bytes in use, more of them while a large buffer is there."""
    size = 1 << 24
    before = client.api.call("PJRT_Device_MemoryStats", device=client.device)
    buffer = client.buffer([0.0] * (size // 4))
    during = client.api.call("PJRT_Device_MemoryStats", device=client.device)
    grown = during.bytes_in_use - before.bytes_in_use
    expect(before.bytes_in_use >= 0, f"{before.bytes_in_use} bytes are in use")
    if before.bytes_in_use == during.bytes_in_use == 0:
        raise NotMeasurableError("it counts no bytes: 0 with and without a buffer")
    expect(grown >= size, f"a buffer of {size:,} bytes takes {grown:,}")
    if during.peak_bytes_in_use_is_set:
        expect(during.peak_bytes_in_use >= during.bytes_in_use, "the peak is below what is in use")
    if during.bytes_limit_is_set:
        expect(during.bytes_limit >= during.bytes_in_use, "more bytes are in use than the limit")
    client.api.call("PJRT_Buffer_Destroy", buffer=buffer)


@check
def clear_memory_stats(client: Client) -> None:
    """Clear the counts of a device's memory."""
    client.api.call("PJRT_Device_ClearMemoryStats", device=client.device)


@check
def own_attributes(client: Client) -> None:
    """Return attributes of a device itself, and free them."""
    it = client.api.call("PJRT_Device_GetAttributes", device=client.device)
    client.api.named_values(it.attributes, it.num_attributes, "PJRT_Device_GetAttributes")
    client.api.free(it.attributes_deleter, it.device_attributes, "attributes_deleter")


@check
def tracking_event(client: Client) -> None:
    """Make an event that tracks work of the caller, and free it."""
    it = client.api.call(
        "PJRT_Device_CreateAsyncTrackingEvent", device=client.device, description=b"a check"
    )
    expect(it.event, "PJRT_Device_CreateAsyncTrackingEvent: event is null")
    client.api.call("PJRT_AsyncTrackingEvent_Destroy", event=it.event)
