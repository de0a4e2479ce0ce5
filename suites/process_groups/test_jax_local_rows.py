"""What each process gives of an array whose devices are in an order of their own, and moves."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding

from harness.model.topology import Topology
from suites.shared.global_arrays import Spec, mesh_of, parts, run_jax_ranks, spread
from suites.shared.jax_releases import since_0_5

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("8@host"),
    pytest.mark.upstream("jax-ml/jax#16816"),
    since_0_5,
]
VALUE = (np.arange(16 * 16).reshape(16, 16) * 37 % 251).astype(np.float32)
# Devices in the order of the mesh, four of each of two processes, with the specs of the array.
ORDERS = {
    "in order": [0, 1, 2, 3, 4, 5, 6, 7],
    "backwards": [7, 6, 5, 4, 3, 2, 1, 0],
    "by turns": [0, 4, 1, 5, 2, 6, 3, 7],
    "pairs": [4, 5, 0, 1, 2, 3, 6, 7],
    "mixed": [0, 1, 4, 2, 5, 6, 3, 7],
    "overlapping": [0, 1, 2, 4, 3, 5, 6, 7],
}
SPECS = (Spec("x"), Spec("x", "y"), Spec(("y", "x"), None), Spec(None, "y"), Spec(), Spec("y", "x"))


def permuted(order: list[int]) -> Mesh:
    """Return a mesh of two rows of these devices."""
    return Mesh(np.array([jax.devices()[n] for n in order]).reshape(2, 4), ("x", "y"))


def rows_of(indices: dict[Any, Any], dimension: int) -> np.ndarray:
    """Return the places in that dimension that a process's devices have of the value."""
    return np.unique([range(16)[index[dimension]] for index in indices.values()])


def wrong_parts(at: NamedSharding, local: np.ndarray) -> list[int]:
    """Return which of this process's devices have another part than theirs."""
    array = jax.make_array_from_process_local_data(at, local, VALUE.shape)
    indices = {d.id: i for d, i in at.addressable_devices_indices_map(VALUE.shape).items()}
    return [d for d, part in parts(array).items() if not np.array_equal(part, VALUE[indices[d]])]


def test_local_data(topology: Topology, subtests: pytest.Subtests) -> None:
    """Each process gives the rows and columns of its devices, or all of them; not a few."""

    def rank(_: int) -> dict[str, Any]:
        wrong = {}
        for name, order in ORDERS.items():
            for spec in SPECS:
                at = NamedSharding(permuted(order), spec)
                indices = at.addressable_devices_indices_map(VALUE.shape)
                rows, columns = (rows_of(indices, dimension) for dimension in (0, 1))
                for local in (VALUE[np.ix_(rows, columns)], VALUE[rows], VALUE[:, columns], VALUE):
                    wrong[f"{name} {spec} {local.shape}"] = wrong_parts(at, local)
                try:
                    wrong_parts(at, VALUE[:3])
                except ValueError:
                    continue
                wrong[f"{name} {spec} too few"] = [-1]
        return {name: devices for name, devices in wrong.items() if devices}

    for number, wrong in enumerate(run_jax_ranks(rank, topology)):
        with subtests.test(rank=number):
            assert wrong == {}


def test_inferred_shape(topology: Topology, subtests: pytest.Subtests) -> None:
    """Where each process has other rows than the others, or the same, theirs make the whole."""
    cases = {
        ("in order", Spec("x")): (32, 16),
        ("in order", Spec(None, "y")): (16, 16),
        ("in order", Spec()): (16, 16),
        ("backwards", Spec("x", "y")): (32, 16),
        ("by turns", Spec(None, "y")): (16, 32),
        ("pairs", Spec("x")): (16, 16),
        ("mixed", Spec("x", "y")): (16, 16),
        ("overlapping", Spec("x", "y")): None,
    }

    def rank(_: int) -> list[Any]:
        shapes: list[Any] = []
        for name, spec in cases:
            at = NamedSharding(permuted(ORDERS[name]), spec)
            try:
                shapes.append(jax.make_array_from_process_local_data(at, VALUE).shape)
            except ValueError:
                shapes.append(None)
        return shapes

    for number, shapes in enumerate(run_jax_ranks(rank, topology)):
        with subtests.test(rank=number):
            assert shapes == list(cases.values())


def test_moved(topology: Topology, subtests: pytest.Subtests) -> None:
    """Between specs, and between meshes of the same devices in another order."""
    moves = [
        ("in order", Spec("x"), "in order", Spec(None, "y")),
        ("in order", Spec("x", "y"), "backwards", Spec("x", "y")),
        ("by turns", Spec("x"), "pairs", Spec(("y", "x"))),
        ("mixed", Spec(), "in order", Spec("y")),
    ]

    def rank(_: int) -> dict[str, bool]:
        right = {}
        for source, given, target, wanted in moves:
            array = spread(VALUE, permuted(ORDERS[source]), given)
            for of in ({}, {"donate": True}):
                to = NamedSharding(permuted(ORDERS[target]), wanted)
                moved = jax.device_put(array, to, **of)
                indices = {d.id: i for d, i in to.addressable_devices_indices_map((16, 16)).items()}
                right[f"{source} to {target} {of}"] = moved.sharding == to and all(
                    np.array_equal(VALUE[indices[device]], part)
                    for device, part in parts(moved).items()
                )
        everywhere = spread(VALUE, mesh_of(2, 4), Spec())
        own = [shard for shard in everywhere.global_shards if shard.data is not None]
        right["read"] = np.array_equal(everywhere, VALUE)
        right["shards"] = (len(everywhere.global_shards), len(own)) == (8, 4)
        halves = spread(VALUE, permuted(ORDERS["pairs"]), Spec(None, "y"))
        right["whole in each process"] = np.array_equal(halves, VALUE)
        placed = jax.device_put(VALUE, NamedSharding(mesh_of(8), Spec("x")))
        right["placed"] = all(
            np.array_equal(part, VALUE[2 * device : 2 * device + 2])
            for device, part in parts(placed).items()
        )
        return right

    for number, right in enumerate(run_jax_ranks(rank, topology)):
        with subtests.test(rank=number):
            assert [name for name, is_right in right.items() if not is_right] == []


def test_different_values_are_refused(topology: Topology) -> None:
    """What every process puts on all devices has to be the same in all of them."""

    def rank(number: int) -> bool:
        try:
            jax.device_put(np.full((2, 2), number), NamedSharding(mesh_of(2, 4), Spec("x")))
        except AssertionError:
            return True
        return False

    assert any(run_jax_ranks(rank, topology))
