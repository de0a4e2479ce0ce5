"""Topologies: described, serialized, and compiled for without a client."""

from __future__ import annotations

from typing import Any

from harness.conformance.c_api.client import Client
from harness.conformance.plugin_check import UnsupportedError, check, checks, expect


def _topology(client: Client) -> int:
    it = client.api.call("PJRT_Client_TopologyDescription", client=client.handle)
    return client.owned(it.topology, "PJRT_Client_TopologyDescription: topology")


def _created(client: Client) -> int:
    """Return a topology that was created without a client, under the plugin's default name."""
    client.initialize()
    it = client.api.arguments("PJRT_TopologyDescription_Create", topology_name=b"")
    error = client.api.refusal("PJRT_TopologyDescription_Create", it)
    if error is not None:
        raise UnsupportedError(f"it creates no topology without a name: {error.message[:300]}")
    return client.owned(it.topology, "PJRT_TopologyDescription_Create: topology")


def _descriptions(client: Client, topology: int) -> list[int]:
    it = client.api.call("PJRT_TopologyDescription_GetDeviceDescriptions", topology=topology)
    return client.api.pointers(it.descriptions, it.num_descriptions, "its descriptions")


def _serialized(client: Client, topology: int) -> bytes:
    it = client.api.call("PJRT_TopologyDescription_Serialize", topology=topology)
    data = client.api.content(it.serialized_bytes, it.serialized_bytes_size, "serialized_bytes")
    name = "serialized_topology_deleter"
    client.api.free(it.serialized_topology_deleter, it.serialized_topology, name)
    return data


@checks(
    {
        "name": ("PJRT_TopologyDescription_PlatformName", "platform_name"),
        "version": ("PJRT_TopologyDescription_PlatformVersion", "platform_version"),
    }
)
def platform(client: Client, function: str, field: str) -> None:
    """Give the platform of a topology the name and the version that the client gives it."""
    it = client.api.call(function, topology=_topology(client))
    own = client.api.text(getattr(it, field), getattr(it, f"{field}_size"), field)
    function = function.replace("TopologyDescription", "Client")
    it = client.api.call(function, client=client.handle)
    expected = client.api.text(getattr(it, field), getattr(it, f"{field}_size"), field)
    expect(own == expected, f"{field} is {own!r}, and the client's is {expected!r}")


@check
def descriptions(client: Client) -> None:
    """Describe a topology's devices, the client's, in the same order each time."""
    topology = _topology(client)
    first = _descriptions(client, topology)
    expect(len(first) == len(client.devices), f"{len(first)} devices, of {len(client.devices)}")

    def ids(ones: list[int]) -> list[int]:
        return [
            client.api.call("PJRT_DeviceDescription_Id", device_description=each).id
            for each in ones
        ]

    again = ids(_descriptions(client, topology))
    expect(ids(first) == again, f"the order changed: {ids(first)}, then {again}")
    own = sorted(client.device_id(device) for device in client.devices)
    expect(sorted(again) == own, f"its devices have ids {sorted(again)}, and the client's {own}")


@check
def attributes(client: Client) -> None:
    """Return attributes of a topology that have names, types and values."""
    it = client.api.call("PJRT_TopologyDescription_Attributes", topology=_topology(client))
    client.api.named_values(it.attributes, it.num_attributes, "PJRT_TopologyDescription_Attributes")


@check
def serialized(client: Client) -> None:
    """Serialize a topology to the same bytes each time."""
    topology = _topology(client)
    data = _serialized(client, topology)
    expect(data, "a serialized topology has no bytes")
    expect(_serialized(client, topology) == data, "the bytes of one topology differ")


@check
def read_again(client: Client) -> None:
    """Read a serialized topology with as many devices."""
    topology = _topology(client)
    data = _serialized(client, topology)
    function = "PJRT_TopologyDescription_Deserialize"
    it = client.api.arguments(function, serialized_topology=data)
    error = client.api.refusal(function, it)
    if error is not None:
        raise UnsupportedError(f"it reads no topology: {error.message[:300]}")
    other = client.owned(it.topology, "PJRT_TopologyDescription_Deserialize: topology")
    counts = len(_descriptions(client, topology)), len(_descriptions(client, other))
    expect(counts[0] == counts[1], f"it has {counts[1]} devices, of {counts[0]}")


@check
def not_read(client: Client) -> None:
    """Refuse bytes that are no topology."""
    client.initialize()
    function = "PJRT_TopologyDescription_Deserialize"
    it = client.api.arguments(function, serialized_topology=b"\xff" * 64)
    error = client.api.refusal(function, it)
    expect(error is not None, "bytes that are no topology were read")


@check
def fingerprint(client: Client) -> None:
    """Give one topology the same fingerprint each time."""
    topology = _topology(client)
    first, other = (
        client.api.call("PJRT_TopologyDescription_Fingerprint", topology=topology).fingerprint
        for _ in range(2)
    )
    expect(first == other, f"its fingerprint is {first}, then {other}")


@check
def created(client: Client) -> None:
    """Create a topology without a client, describe it and free it."""
    topology = _created(client)
    expect(_descriptions(client, topology), "it has no devices")
    client.api.call("PJRT_TopologyDescription_Destroy", topology=topology)


@check
def no_such_name(client: Client) -> None:
    """Refuse a topology that nobody knows, or take the name for nothing."""
    client.initialize()
    it = client.api.arguments("PJRT_TopologyDescription_Create", topology_name=b"no:such:name")
    if client.api.refusal("PJRT_TopologyDescription_Create", it) is None:
        client.owned(it.topology, "PJRT_TopologyDescription_Create: topology")


@check
def destroy_nothing(client: Client) -> None:
    """Accept null where a topology is destroyed."""
    client.initialize()
    client.api.call("PJRT_TopologyDescription_Destroy", topology=None)


def _compiled(client: Client, topology: int, own: int | None) -> Any:
    return client.api.arguments(
        "PJRT_Compile",
        topology=topology,
        program=client.program(),
        compile_options=client.compile_options(),
        client=own,
    )


@check
def compiled_for(client: Client) -> None:
    """Compile for a topology without a client."""
    it = _compiled(client, _created(client), None)
    client.api.finish("PJRT_Compile", it)
    executable = client.owned(it.executable, "PJRT_Compile: executable")
    outputs = client.api.call("PJRT_Executable_NumOutputs", executable=executable).num_outputs
    expect(outputs == 1, f"it has {outputs} outputs")


@check
def compiled_and_loaded(client: Client) -> None:
    """Compile for the client's topology, load the program, and run it."""
    it = _compiled(client, _topology(client), client.handle)
    error = client.api.refusal("PJRT_Compile", it)
    if error is not None:
        raise UnsupportedError(f"it compiles for no topology: {error.message[:300]}")
    loaded = client.api.call(
        "PJRT_Client_Load",
        client=client.handle,
        executable=it.executable,
        compile_options=client.compile_options(),
    ).loaded_executable
    value = client.buffer()
    (output,) = client.run(client.owned(loaded, "loaded_executable"), [value, value])
    expect(client.values(output) == [2, 4, 6, 8], f"it returns {client.values(output)}")
