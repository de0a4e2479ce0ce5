"""Arrays of JAX with a part in each process of a job, and what comes of them, device by device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from harness.job.ranks import run_ranks
from harness.model.topology import Topology
from harness.platforms import platform_here
from suites.shared.jax_releases import jitted

Spec = PartitionSpec
Parts = dict[int, np.ndarray]  # of one array: what each device has of it, by the device's number


def mesh_of(*shape: int, names: str = "xy") -> Mesh:
    """All devices of the job in that shape; the axes are ``x``, ``y``, ..."""
    return Mesh(np.array(jax.devices()).reshape(shape), tuple(names[: len(shape)]))


def mesh_of_devices(numbers: Sequence[int]) -> Mesh:
    """Only those devices, along ``x``."""
    return Mesh(np.array([jax.devices()[number] for number in numbers]), ("x",))


def spread(value: np.ndarray, mesh: Mesh, spec: PartitionSpec) -> jax.Array:
    """Make the array with that value; each process makes the parts of its own devices."""
    return jax.make_array_from_callback(value.shape, NamedSharding(mesh, spec), value.__getitem__)


def on_each_device(function: Callable[..., Any], mesh: Mesh, spec: PartitionSpec) -> Any:
    """Return the program that applies the function to each device's part of its one argument."""
    return jitted(function, mesh, (spec,), spec)


def parts(array: jax.Array) -> Parts:
    """Return the parts of the array on this process's devices."""
    return {shard.device.id: np.asarray(shard.data) for shard in array.addressable_shards}


def run_jax_ranks(function: Callable[[int], Any], topology: Topology) -> list[Any]:
    """Run the function on every rank, as ``run_ranks``, in processes that are one job of JAX.

    Those of GPUs have to join it; libtpu joins them by itself.
    """
    if not platform_here().clients_say_place:
        return run_ranks(function, topology)

    def rank(number: int) -> Any:
        jax.distributed.initialize()
        value = function(number)
        jax.distributed.shutdown()
        return value

    return run_ranks(rank, topology)


def on_ranks(
    function: Callable[[int], Mapping[str, Parts]], topology: Topology
) -> dict[str, list[np.ndarray]]:
    """Run the function on every rank; return each named array's parts in the devices' order.

    Raises AssertionError for a device that two processes addressed, or none.
    """
    merged: dict[str, Parts] = {}
    for rank in run_jax_ranks(function, topology):
        for name, own in rank.items():
            parts = merged.setdefault(name, {})
            assert not parts.keys() & own.keys(), f"{name}: two processes have a device's part"
            parts.update(own)
    for name, parts in merged.items():
        assert sorted(parts) == list(range(topology.total)), f"{name}: parts of {sorted(parts)}"
    return {name: [parts[device] for device in sorted(parts)] for name, parts in merged.items()}
