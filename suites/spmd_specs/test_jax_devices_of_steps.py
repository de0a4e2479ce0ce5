"""On which devices a step is lowered: those that anything in it names, also in what it calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding

from suites.shared.global_arrays import Spec, mesh_of
from suites.shared.jax_releases import jitted, since_0_5

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("8"),
    pytest.mark.upstream("jax-ml/jax#26946"),
    since_0_5,
]
VALUE = np.zeros((8, 8), np.float32)


def test_devices_of_what_is_within(subtests: pytest.Subtests) -> None:
    mesh = mesh_of(8)
    at = NamedSharding(mesh, Spec("x"))
    host = at.with_memory_kind("pinned_host")
    few = NamedSharding(Mesh(np.array(jax.devices()[:2]), ("x",)), Spec("x"))
    given = jax.ShapeDtypeStruct(VALUE.shape, VALUE.dtype, sharding=few)
    doubled = jax.jit(lambda v: v * 2, out_shardings=at)
    ways: dict[str, Callable[[Any], Any]] = {
        "results": doubled,
        "arguments": jax.jit(lambda v: v * 2, in_shardings=at),
        "constraint": lambda v: lax.with_sharding_constraint(v, at) * 2,
        "map": jitted(lambda v: v * 2, mesh, (Spec("x"),), Spec("x")),
        "memory": lambda v: jax.device_put(v * 2, host),
        "loop": lambda v: lax.fori_loop(0, 1, lambda _, u: doubled(u), v),
    }
    for name, way in ways.items():
        with subtests.test(name=name):
            text = jax.jit(lambda v, way=way: way(v + 1)).lower(VALUE).as_text()
            assert "mhlo.num_partitions = 8" in text
            placed = "annotate_device_placement" in text
            assert placed == (name == "memory") == ("pinned_host" in text)
        with subtests.test("two sets", name=name), pytest.raises(ValueError, match="devices"):
            jax.jit(lambda v, way=way: way(v + 1)).lower(given)
    with subtests.test("nothing"):
        assert "num_partitions = 1" in jax.jit(lambda v: v + 1).lower(VALUE).as_text()
        assert "num_partitions = 2" in jax.jit(lambda v: v + 1).lower(given).as_text()
