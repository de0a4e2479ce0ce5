"""Whether a program exchanges data is read from its instructions, not from names in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from harness.job.ranks import run_ranks
from harness.model.topology import Topology

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("2@chip"),
    pytest.mark.environment(VIRTUAL_TPU_DEADLINE="5"),
    pytest.mark.deadline(120),
]
NAMES = ("all-reduce", "all_gather", "collective-permute", "tpu_custom_call")
# Compiled in a folder and a file with such names, as the metadata of a program says.
SOURCE = """
import jax
def {name}(x):
    with jax.named_scope("all-to-all"):
        return x + 1
"""


def on_both(rows: int = 2) -> tuple[Any, Any]:
    """A mesh of both devices, and an array of rows of ones that each has."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()), "x")
    full = np.ones((2 * rows, 2), np.float32)
    sharding = NamedSharding(mesh, PartitionSpec("x"))
    return mesh, jax.make_array_from_callback(full.shape, sharding, lambda index: full[index])


def own(array: Any) -> list[float]:
    import numpy as np

    return sorted({float(v) for shard in array.addressable_shards for v in np.ravel(shard.data)})


def test_names_of_collectives_exchange_nothing(topology: Topology) -> None:
    """One rank runs such programs alone, while the other ends."""

    def work(rank: int) -> list[list[float]]:
        import jax

        _, ones = on_both()
        if rank == 1:
            return []
        results = []
        for name in NAMES:
            scope: dict[str, Any] = {}
            source = SOURCE.format(name=name.replace("-", "_"))
            exec(compile(source, f"/tmp/tx-{name}/{name}/{name}.py", "exec"), scope)
            function = scope[name.replace("-", "_")]
            function.__name__ = name
            results.append(own(jax.jit(function)(ones)))
        return results

    assert run_ranks(work, topology) == [[[2.0]] * len(NAMES), []]


def collectives() -> dict[str, Callable[[Any], Any]]:
    from jax import lax

    def psum(x: Any) -> Any:
        return lax.psum(x, "x")

    return {
        "psum": psum,
        "all_gather": lambda x: lax.all_gather(x, "x", tiled=True)[: len(x)] * 2,
        "all_to_all": lambda x: lax.all_to_all(x, "x", 0, 0, tiled=True) * 2,
        "ppermute": lambda x: lax.ppermute(x, "x", [(0, 1), (1, 0)]) * 2,
        "psum_scatter": lambda x: lax.psum_scatter(x, "x", tiled=True).repeat(2, 0),
        "loop": lambda x: lax.fori_loop(0, 2, lambda _, y: psum(y) / 2, x) * 2,
        "branch": lambda x: lax.cond(x.sum() > 0, psum, lambda y: y, x),
        "nested": lambda x: lax.cond(
            x.sum() > 0, lambda y: lax.fori_loop(0, 1, lambda _, z: psum(z), y), lambda y: y, x
        ),
    }


def test_collectives_are_found_wherever_they_are(topology: Topology) -> None:
    """A program whose collective is overlooked runs on one device alone, and has another result."""

    def work(_: int) -> dict[str, list[float]]:
        import jax
        from jax.sharding import PartitionSpec

        mesh, ones = on_both()
        part = PartitionSpec("x")
        return {
            name: own(
                jax.jit(
                    jax.shard_map(body, mesh=mesh, in_specs=part, out_specs=part, check_vma=False)
                )(ones)
            )
            for name, body in collectives().items()
        }

    assert run_ranks(work, topology) == [{name: [2.0] for name in collectives()}] * 2
