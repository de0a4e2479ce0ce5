"""Find the devices that a collective of an HLO module groups, in any of HLO's notations."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

from harness.lanes.hlo import Instruction, MeshGroups

if TYPE_CHECKING:
    import numpy as np


def replica_groups(instruction: Instruction) -> list[list[int]]:
    """Return the groups of a collective; none if all devices are one group, or it has pairs.

    XLA writes them out, as a grid of all devices whose axes are put in another order, or as axes of
    a mesh: https://github.com/openxla/xla/blob/main/xla/xla_data.proto (IotaReplicaGroupListProto,
    MeshAxesReplicaGroupListProto).
    """
    devices = instruction.device_list
    if groups := devices.replica_groups or instruction.replica_groups:
        return [list(group.replica_ids) for group in groups]
    if instruction.HasField("mesh_groups"):
        return _along_axes(instruction.mesh_groups)
    iota = devices.iota if devices.iota.groups else instruction.iota_device_list
    if not iota.groups:
        return []
    grid = _grid(list(iota.reshape_dims), list(iota.transpose_perm))
    groups_read: list[list[int]] = grid.reshape(iota.groups, iota.devices).tolist()
    return groups_read


def _grid(dimensions: list[int], order: list[int]) -> np.ndarray:
    import numpy as np  # which is missing where a run is planned, and lanes are only named

    return np.arange(math.prod(dimensions)).reshape(dimensions).transpose(order or None)


def _along_axes(groups: MeshGroups) -> list[list[int]]:
    """Return the groups of devices along axes of a mesh, or along parts of axes.

    A part has a size, and the product of the parts of its axis that are more major.
    """
    import numpy as np

    sizes = [axis.size for axis in groups.mesh.axes]
    parts = []
    for axis in groups.axes:
        start = axis.sub_axis.pre_size or 1
        size = axis.sub_axis.size or sizes[axis.mesh_axis_index]
        parts.append((axis.mesh_axis_index, start, start * size))
    dimensions, places = [], []
    for number, size in enumerate(sizes):
        cuts = {1, size, *(cut for axis, *ends in parts if axis == number for cut in ends)}
        for start, end in pairwise(sorted(cuts)):
            dimensions.append(end // start)
            places.append((number, start))
    along = [
        dimension
        for axis, start, end in parts
        for dimension, (number, place) in enumerate(places)
        if number == axis and start <= place < end
    ]
    others = [dimension for dimension in range(len(places)) if dimension not in along]
    transform = groups.mesh.iota_transform
    devices = np.array(groups.mesh.device_ids) if groups.mesh.device_ids else None
    if devices is None:
        dims = list(transform.reshape_dims) or [math.prod(sizes)]
        devices = _grid(dims, list(transform.transpose_perm))
    grid = devices.reshape(dimensions).transpose(others + along)
    groups_read: list[list[int]] = grid.reshape(
        -1, math.prod(dimensions[dimension] for dimension in along)
    ).tolist()
    return groups_read
