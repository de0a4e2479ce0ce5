"""The table of functions itself, and what a plugin says of itself before there is a client."""

from __future__ import annotations

import ctypes

from harness.conformance.c_api.api import NEEDED
from harness.conformance.c_api.client import Client
from harness.conformance.plugin_check import check, expect


@check
def struct_size(client: Client) -> None:
    """Give a table that has whole entries, and as many as its struct_size says."""
    size, first = client.api.plugin.api_struct_size, client.api.abi.VTABLE_OFFSET
    expect(size > first, f"struct_size is {size}, which is less than the {first} bytes before it")
    expect((size - first) % 8 == 0, f"struct_size {size} ends within an entry")


@check
def version(client: Client) -> None:
    """State a version of the API whose major number is the header's."""
    abi = client.api.abi
    value = abi.PJRT_Api.from_address(client.api.plugin.api).pjrt_api_version
    expect(
        value.struct_size >= abi.PJRT_Api_Version_STRUCT_SIZE,
        f"pjrt_api_version.struct_size is {value.struct_size}, expected "
        f"{abi.PJRT_Api_Version_STRUCT_SIZE}",
    )
    expect(
        (value.major_version, value.minor_version > 0) == (abi.PJRT_API_MAJOR, True),
        f"it is PJRT {value.major_version}.{value.minor_version}, expected {abi.PJRT_API_MAJOR}.x",
    )


@check
def same_table(client: Client) -> None:
    """Return the same table whenever GetPjrtApi is called."""
    get = ctypes.CDLL(str(client.api.plugin.path)).GetPjrtApi
    get.restype = ctypes.c_void_p
    expect(get() == client.api.plugin.api, "GetPjrtApi returned another table the second time")


@check
def needed_entries(client: Client) -> None:
    """Have every entry that clients call without looking whether it is null."""
    lacking = [client.api.lacks(name) for name in sorted(NEEDED) if client.api.lacks(name)]
    expect(not lacking, "; ".join(lacking))


@check
def initialize(client: Client) -> None:
    """Initialize the plugin."""
    client.initialize()


@check
def attributes(client: Client) -> None:
    """Return attributes of the plugin that have names, types and values."""
    client.initialize()
    it = client.api.call("PJRT_Plugin_Attributes")
    client.api.named_values(it.attributes, it.num_attributes, "PJRT_Plugin_Attributes")


@check
def stablehlo_versions(client: Client) -> None:
    """State the versions of StableHLO that it reads, as three numbers each."""
    client.initialize()
    it = client.api.call("PJRT_Plugin_Attributes")
    values = client.api.named_values(it.attributes, it.num_attributes, "PJRT_Plugin_Attributes")
    names = "stablehlo_minimum_version", "stablehlo_current_version"
    lacking = [name for name in names if name not in values]
    expect(not lacking, f"PJRT_Plugin_Attributes has no {' and no '.join(lacking)}")
    for name in names:
        value = values[name]
        expect(isinstance(value, list) and len(value) == 3, f"{name} is {value!r}")
    least, most = (values[name] for name in names)
    expect(least <= most, f"the minimum version {least} is above the current one, {most}")


@check
def extensions(client: Client) -> None:
    """Chain the extensions so that each is whole, has a type of its own, and the chain ends."""
    api = client.api
    base, ends = api.abi.PJRT_Extension_Base, set[int]()
    address = api.abi.PJRT_Api.from_address(api.plugin.api).extension_start
    types = list[int]()
    while address:
        expect(address not in ends, "the chain of extensions is a circle")
        ends.add(address)
        first = base.from_address(address)
        expect(
            first.struct_size >= api.abi.PJRT_Extension_Base_STRUCT_SIZE,
            f"extension {first.type} has struct_size {first.struct_size}",
        )
        types.append(int(first.type))
        address = first.next
    double = {each for each in types if types.count(each) > 1}
    expect(not double, f"extension types {sorted(double)} are there more than once")
