"""Find the devices that a collective of an HLO module groups, in any of HLO's notations."""

from __future__ import annotations

import math

import numpy as np

from harness.lanes.hlo import Instruction


def replica_groups(instruction: Instruction) -> list[list[int]]:
    """Return the groups of a collective; none if all devices are one group, or it has pairs.

    XLA writes them out, or as a grid of all devices whose axes are put in another order:
    https://github.com/openxla/xla/blob/main/xla/xla_data.proto (IotaReplicaGroupListProto).
    """
    devices = instruction.device_list
    if groups := devices.replica_groups or instruction.replica_groups:
        return [list(group.replica_ids) for group in groups]
    iota = devices.iota
    if not iota.groups:
        return []
    grid = np.arange(math.prod(iota.reshape_dims)).reshape(*iota.reshape_dims)
    order = list(iota.transpose_perm) or None
    groups_read: list[list[int]] = grid.transpose(order).reshape(iota.groups, iota.devices).tolist()
    return groups_read
