"""The arguments of a program over several processes arrive, whatever their size and time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from harness.job.ranks import run_ranks
from harness.model.topology import Topology

pytestmark = [
    pytest.mark.measures_coverage,
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("2@chip"),
    pytest.mark.environment(VIRTUAL_TPU_DEADLINE="8"),
    pytest.mark.deadline(90),
]
SMALL, LARGE = 8, 1024  # the plugin copies an argument of 1 MiB at the most in the caller's thread


def to_the_neighbour(size: int) -> tuple[Any, Any]:
    """A program that gives each row's array to the other device, and its argument."""
    import jax
    import numpy as np
    from jax import lax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    part = PartitionSpec("x")
    mesh = Mesh(np.array(jax.devices()), "x")
    full = np.arange(2 * size * size, dtype=np.float32).reshape(2, size, size)
    x = jax.make_array_from_callback(full.shape, NamedSharding(mesh, part), lambda at: full[at])
    swap = jax.shard_map(
        lambda rows: lax.ppermute(rows, "x", [(0, 1), (1, 0)]) + 1,
        mesh=mesh,
        in_specs=part,
        out_specs=part,
    )
    return jax.jit(swap), x


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_an_argument_that_is_there(topology: Topology, size: int) -> None:
    def work(number: int) -> bool:
        import numpy as np

        swap, x = to_the_neighbour(size)
        (shard,) = swap(x).addressable_shards
        expected = np.arange(2 * size * size, dtype=np.float32).reshape(2, size, size) + 1
        return np.array_equal(np.asarray(shard.data)[0], expected[1 - number])

    assert run_ranks(work, topology) == [True, True]


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_an_argument_that_is_computed_meanwhile(topology: Topology, size: int) -> None:
    """Each program takes the last one's result, which is deleted at once, before it is there."""

    def work(number: int) -> bool:
        import numpy as np

        swap, x = to_the_neighbour(size)
        for _ in range(6):
            before, x = x, swap(x)
            before.delete()
        (shard,) = x.addressable_shards
        expected = np.arange(2 * size * size, dtype=np.float32).reshape(2, size, size) + 6
        return np.array_equal(np.asarray(shard.data)[0], expected[number])

    assert run_ranks(work, topology) == [True, True]


def test_a_caller_does_not_wait_for_an_argument(topology: Topology, tmp_path: Path) -> None:
    """Rank 1 comes to the first program after rank 0 has called the second with its result."""
    called = tmp_path / "called"

    def work(number: int) -> float:
        swap, x = to_the_neighbour(SMALL)
        while number == 1 and not called.exists():
            time.sleep(0.01)
        y = swap(swap(x))
        called.touch()
        return float(y.addressable_shards[0].data[0, 0, 0])

    assert run_ranks(work, topology) == [2.0, SMALL * SMALL + 2.0]
