"""Where JAX puts each axis of a mesh on a torus, if axes have parts of its dimensions.

The tables follow what mesh_utils documents: later axes are used more, so they choose first; they
prefer whole dimensions, and more of them, and within a dimension they are the inner ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental import mesh_utils

from harness.model.topology import Topology

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.upstream("pytorch/xla#7102"),
    pytest.mark.skipif(
        jax.__version_info__ < (0, 7), reason="JAX before 0.7 arranges no cores of TPU7x"
    ),
]
Place = Callable[..., tuple[int, int, int]]
# The coordinates of the chip at each place of a mesh.
TABLES: dict[str, dict[tuple[int, ...], Place]] = {
    "v4:2x4x4": {
        (4, 2, 4): lambda a, b, c: (b, c, a),
        (8, 4): lambda a, b: (a // 4, b, a % 4),
        (16, 2): lambda a, b: (b, a // 4, a % 4),
        (2, 16): lambda a, b: (a, b // 4, b % 4),
        (4, 4, 2): lambda a, b, c: (c, b, a),
        (4, 8): lambda a, b: (b // 4, b % 4, a),
        (2, 2, 8): lambda a, b, c: (c // 4, c % 4, 2 * a + b),
        (2, 2, 2, 4): lambda a, b, c, d: (c, d, 2 * a + b),
        (2, 4, 2, 2): lambda a, b, c, d: (d, 2 * a + c, b),
        (2, 1, 2, 8): lambda a, _, b, c: (c // 4, c % 4, 2 * a + b),
    },
    "v4:2x2x4": {
        (2, 1, 2, 4): lambda a, _, b, c: (c // 2, c % 2, 2 * a + b),
        (2, 8): lambda a, b: (b // 4, a, b % 4),
        (8, 2): lambda a, b: (b, a // 4, a % 4),
        (4, 4): lambda a, b: (b // 2, b % 2, a),
    },
}


@pytest.mark.topologies(*TABLES)
def test_places_of_axes(topology: Topology, subtests: pytest.Subtests) -> None:
    for shape, place in TABLES[str(topology)].items():
        with subtests.test(shape=shape):
            mesh = mesh_utils.create_device_mesh(shape, allow_split_physical_axes=True)
            expected = [place(*index) for index in np.ndindex(shape)]
            assert [tuple(device.coords) for device in mesh.flat] == expected


@pytest.mark.topologies("2xv4:2x2x4")
def test_places_in_each_slice(subtests: pytest.Subtests) -> None:
    """Each slice is arranged alike, and slices are those of the devices, sorted or as given."""
    shape, slices = (2, 1, 2, 4), (1, 2, 1, 1)
    place = TABLES["v4:2x2x4"][shape]
    with subtests.test("dimensions in parts"), pytest.raises(NotImplementedError):
        mesh_utils.create_hybrid_device_mesh(shape, slices)
    backwards = jax.devices()[::-1]
    for name, options, first in (
        ("sorted", {}, 0),
        ("as given", {"should_sort_granules_by_key": False}, 1),
    ):
        mesh: Any = mesh_utils.create_hybrid_device_mesh(
            shape, slices, backwards, allow_split_physical_axes=True, **options
        )
        with subtests.test(name=name):
            assert mesh.shape == (2, 2, 2, 4)
            for (a, b, c, d), device in np.ndenumerate(mesh):
                assert device.slice_index == abs(first - b)
                assert tuple(device.coords) == place(a, 0, c, d)
    wrong = {"slices": ((4, 4), (1, 3)), "chips": ((2, 4), (1, 2))}
    for name, (inner, outer) in wrong.items():
        with subtests.test(wrong=name), pytest.raises(ValueError, match="must equal"):
            mesh_utils.create_hybrid_device_mesh(inner, outer)
