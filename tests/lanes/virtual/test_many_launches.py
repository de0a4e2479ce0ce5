"""Programs with collectives that are launched faster than they run, as eager frameworks do."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.mark.lanes("virtual-tpu")
@pytest.mark.topologies(8)
@pytest.mark.deadline(100)
def test_launches_that_nobody_waits_for() -> None:
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    split = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), PartitionSpec("x"))
    step = jax.jit(lambda x: x + x.sum() * 1e-9, out_shardings=split)
    first = value = jax.device_put(jnp.ones((8, 50_000)), split)
    for _ in range(600):
        value = step(value)
    assert np.asarray(value).min() > np.asarray(first).max()
