"""Divided arrays of numbers of few bits, of each type that JAX has."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from suites.shared.global_arrays import mesh_of
from suites.shared.jax_releases import jitted, since_0_5

pytestmark = [
    pytest.mark.lanes("cpu", "virtual-*", "tpu"),
    pytest.mark.topologies("4"),
    pytest.mark.upstream("jax-ml/jax#23585"),
    since_0_5,
]
FLOATS = (
    "float8_e3m4",
    "float8_e4m3",
    "float8_e4m3b11fnuz",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float4_e2m1fn",
)


def named(name: str) -> Any:
    """Return the case of a type, which is skipped where JAX lacks it."""
    lacks = pytest.mark.skipif(not hasattr(jnp, name), reason=f"this release has no {name}")
    return pytest.param(name, marks=lacks)


@pytest.mark.parametrize("name", [named(each) for each in (*FLOATS, "int4", "uint4")])
def test_whole_on_every_device(name: str) -> None:
    """By the result's sharding, and by a collective; what each device has is read in 32 bits."""
    mesh, spec = mesh_of(4), PartitionSpec("x")
    everywhere = NamedSharding(mesh, PartitionSpec())
    value = np.array([0.5, 1, 2, 4] if name in FLOATS else [0, 1, 2, 7]).astype(jnp.dtype(name))
    x = jax.device_put(np.tile(value, 4), NamedSharding(mesh, spec))

    def repeated(x: Any) -> Any:
        return jnp.concatenate([x, x])

    def gathered(x: Any) -> Any:
        return lax.all_gather(x, "x", tiled=True)

    twice = jax.jit(repeated, out_shardings=everywhere)(x)
    whole = jitted(gathered, mesh, (spec,), PartitionSpec())(x)
    for times, array in ((8, twice), (4, whole)):
        for shard in array.addressable_shards:
            expected = np.tile(value, times).astype(np.float32)
            np.testing.assert_array_equal(np.asarray(shard.data).astype(np.float32), expected)
