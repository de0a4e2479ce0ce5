"""What a collective must leave of the groups that it was asked for, when libtpu has compiled it."""

from __future__ import annotations

from harness.lanes.aot.optimized import Optimized
from harness.model.topology import Topology
from suites.shared.groups import Groups

SHAPE = (512, 256)
BYTES = 4 * 512 * 256


def inside(groups: Groups, topology: Topology) -> Groups:
    """Return the part of each group that is in the first slice, as positions in that slice."""
    own = (tuple(rank for rank in group if rank < topology.devices) for group in groups)
    return tuple(sorted(group for group in own if group))


def must_send(operation: str, groups: Groups, topology: Topology) -> int:
    """Bytes that a device has to send to other slices, given that slices first do what they can.

    A reduction is scattered over the group's devices of a slice before it leaves it; a gathered
    tensor leaves it once; of an all-to-all libtpu sends even what stays to the host.
    """
    local = sum(rank < topology.devices for rank in groups[0])
    if local == len(groups[0]):
        return 0
    return BYTES // local if operation in ("all_reduce", "reduce_scatter") else BYTES


def check_exchange(
    program: Optimized, groups: Groups, topology: Topology, sent: int, token: int = 0
) -> None:
    """Inside a slice only over its part of the groups; to others what must go, and a token.

    Raises AssertionError.
    """
    local = inside(groups, topology)
    for collective in program.collectives:
        sorted_groups = tuple(sorted(tuple(sorted(group)) for group in collective.groups))
        assert sorted_groups == local, f"{collective}: expected groups {local}"
    assert sent <= program.bytes_across <= sent + token * bool(sent), (
        f"{program.bytes_across} bytes go to other slices, expected {sent}: {program.transfers}"
    )
    if not sent:
        assert program.collectives, "the collective is gone"
