"""What a collective must leave of the groups that it was asked for, when it has been compiled."""

from __future__ import annotations

from harness.lanes.aot.optimized import Optimized
from harness.model.topology import Topology
from suites.shared.groups import Groups, leaves_slices
from suites.shared.platforms import is_on_gpus

SHAPE = (512, 256)
BYTES = 4 * 512 * 256


def inside(groups: Groups, topology: Topology) -> Groups:
    """Return the part of each group that is in the first slice, as positions in that slice.

    Of GPUs a group that leaves its node is one collective between nodes, and none inside.
    """
    if is_on_gpus() and leaves_slices(groups, topology):
        return ()
    own = (tuple(rank for rank in group if rank < topology.devices) for group in groups)
    return tuple(sorted(group for group in own if group))


def must_send(operation: str, groups: Groups, topology: Topology) -> int:
    """Bytes that a device has to send to other slices, given that slices first do what they can.

    A reduction is scattered over the group's devices of a slice before it leaves it; a gathered
    tensor leaves it once; of an all-to-all libtpu sends even what stays to the host. A GPU hands
    NCCL all of it, which knows the nodes.
    """
    if not leaves_slices(groups, topology):
        return 0
    if is_on_gpus() or operation not in ("all_reduce", "reduce_scatter"):
        return BYTES
    return BYTES // sum(rank < topology.devices for rank in groups[0])


def check_exchange(
    program: Optimized, groups: Groups, topology: Topology, sent: int, token: int = 0
) -> None:
    """Inside a slice only over its part of the groups; to others what must go, and a token.

    On GPUs each group is a communicator. Raises AssertionError.
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
    if is_on_gpus():
        assert program.communicators == tuple(sorted(tuple(sorted(group)) for group in groups))
