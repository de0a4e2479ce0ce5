"""Specs of axes with long names: what they divide, and which ones a mesh refuses."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding

from suites.shared.global_arrays import Spec
from suites.shared.jax_releases import since_0_5

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("8"),
    pytest.mark.upstream("jax-ml/jax#26946"),
    since_0_5,
]
SIZES = {"data": 2, "model": 4, "one": 1}
# The entries, by how much they divide each of two dimensions.
RIGHT: dict[tuple[Any, ...], tuple[int, int]] = {
    (): (1, 1),
    (None,): (1, 1),
    ("data",): (2, 1),
    (None, "model"): (1, 4),
    ("model", "data"): (4, 2),
    (("data", "model"),): (8, 1),
    (("model", "data"), None): (8, 1),
    (None, ("model", "one", "data")): (1, 8),
    ("one",): (1, 1),
    (("one", "data"), "model"): (2, 4),
    ((), "data"): (1, 2),
}
WRONG = (
    *(
        ("data", "data"),
        (("data", "model"), "model"),
        (("model", "model"),),
        (None, ("one",), "one"),
    ),
    *(("mode",), ("dat", "model"), (None, ("data", "x")), ("x",)),
)


def parts(value: np.ndarray, at: NamedSharding) -> list[tuple[int, int]]:
    """Return where each device's part begins, in parts, as the indices say."""
    shape = at.shard_shape(value.shape)
    indices = at.devices_indices_map(value.shape)
    starts = [
        tuple((index.start or 0) // n for index, n in zip(indices[d], shape, strict=True))
        for d in at.mesh.devices.flat
    ]
    for device, start in zip(at.mesh.devices.flat, starts, strict=True):
        assert value[indices[device]].shape == shape, start
    return starts


def place_of(entry: Any, where: dict[str, int]) -> int:
    """Return the number of a device's part along a dimension."""
    axes = () if entry is None else (entry,) if isinstance(entry, str) else entry
    place = 0
    for axis in axes:
        place = place * SIZES[axis] + where[axis]
    return place


def test_names_of_axes(subtests: pytest.Subtests) -> None:
    devices = np.array(jax.devices()).reshape(*SIZES.values())
    mesh = Mesh(devices, tuple(SIZES))
    value = np.arange(16 * 8).reshape(16, 8)
    for entries, (rows, columns) in RIGHT.items():
        at = NamedSharding(mesh, Spec(*entries))
        full = (*entries, None, None)[:2]
        with subtests.test(entries=entries):
            assert at.shard_shape(value.shape) == (16 // rows, 8 // columns)
            assert at.is_fully_replicated == (rows * columns == 1)
            assert (at.num_devices, at.is_fully_addressable) == (8, True)
            expected = [
                tuple(place_of(entry, dict(zip(SIZES, where, strict=True))) for entry in full)
                for where in np.ndindex(devices.shape)
            ]
            assert parts(value, at) == expected
            assert at == NamedSharding(mesh, Spec(*entries))
            same = [
                other
                for other, divides in RIGHT.items()
                if at.is_equivalent_to(NamedSharding(mesh, Spec(*other)), 2)
            ]
            assert entries in same
            assert all(RIGHT[other] == (rows, columns) for other in same)
            moved = NamedSharding(mesh, Spec(*entries), memory_kind="pinned_host")
            assert moved == at.with_memory_kind("pinned_host") != at
            other = Mesh(devices, ("data", "m", "one"))
            if "'model'" in str(entries):
                with pytest.raises(ValueError, match="model"):
                    NamedSharding(other, Spec(*entries))
            else:
                assert NamedSharding(other, Spec(*entries)) != at
    for entries in WRONG:
        # An axis twice is an error of a class of JAX's own.
        with subtests.test(wrong=entries), pytest.raises(Exception, match=r"duplicate|not found"):
            NamedSharding(mesh, Spec(*entries))
    with subtests.test("uneven"), pytest.raises(ValueError, match="divi"):
        NamedSharding(mesh, Spec(None, "model")).shard_shape((4, 6))
    with subtests.test("one device"):
        alone = NamedSharding(Mesh(devices[1:, 2:3, :], tuple(SIZES)), Spec("data", "model"))
        assert alone.is_fully_replicated
        assert alone.is_equivalent_to(SingleDeviceSharding(devices[1, 2, 0]), 2)
        assert not alone.is_equivalent_to(SingleDeviceSharding(devices[0, 2, 0]), 2)
