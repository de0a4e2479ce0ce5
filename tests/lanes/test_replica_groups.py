"""The groups of a collective, in the notation that XLA has for them since 2026."""

from __future__ import annotations

import pytest

from harness.lanes.hlo import (
    AxisReference,
    DeviceMesh,
    Instruction,
    IotaReplicaGroups,
    IotaTransform,
    MeshAxis,
    MeshGroups,
    SubAxis,
)
from harness.lanes.replica_groups import replica_groups

COLUMNS = IotaTransform(reshape_dims=[4, 2], transpose_perm=[1, 0])


@pytest.mark.parametrize(
    ("axes", "mesh", "groups"),
    [
        # mesh['a'=2,'b'=4] {'b'}
        ([(1, None)], DeviceMesh(), [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ([(0, None)], DeviceMesh(), [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ([(1, None), (0, None)], DeviceMesh(), [[0, 4, 1, 5, 2, 6, 3, 7]]),
        # {'b':(1)2}, the major half of b, and {'b':(2)2}
        ([(1, (1, 2))], DeviceMesh(), [[0, 2], [1, 3], [4, 6], [5, 7]]),
        ([(1, (2, 2))], DeviceMesh(), [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ([(1, None)], DeviceMesh(device_ids=range(7, -1, -1)), [[7, 6, 5, 4], [3, 2, 1, 0]]),
        ([(1, None)], DeviceMesh(iota_transform=COLUMNS), [[0, 2, 4, 6], [1, 3, 5, 7]]),
    ],
)
def test_groups_may_be_along_axes_of_a_mesh(
    axes: list[tuple[int, tuple[int, int] | None]],
    mesh: DeviceMesh,
    groups: list[list[int]],
) -> None:
    read = MeshGroups(mesh=mesh)
    read.mesh.axes.extend([MeshAxis(size=2), MeshAxis(size=4)])
    for number, part in axes:
        sub_axis = SubAxis(pre_size=part[0], size=part[1]) if part else None
        read.axes.append(AxisReference(mesh_axis_index=number, sub_axis=sub_axis))
    assert replica_groups(Instruction(mesh_groups=read)) == groups


def test_groups_may_be_written_as_iota_of_their_own() -> None:
    iota = IotaReplicaGroups(groups=2, devices=2, reshape_dims=[2, 2], transpose_perm=[1, 0])
    assert replica_groups(Instruction(iota_device_list=iota)) == [[0, 2], [1, 3]]
