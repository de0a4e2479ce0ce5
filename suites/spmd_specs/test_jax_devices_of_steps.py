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


@pytest.mark.parametrize(
    "names",
    [("results", "arguments", "memory"), ("constraint", "map", "loop")],
    ids=["calls", "others"],
)
def test_devices_of_what_is_within(names: tuple[str, ...], subtests: pytest.Subtests) -> None:
    mesh = mesh_of(8)
    at = NamedSharding(mesh, Spec("x"))
    host = at.with_memory_kind("pinned_host")
    few = NamedSharding(Mesh(np.array(jax.devices()[:2]), ("x",)), Spec("x"))
    given = jax.ShapeDtypeStruct(VALUE.shape, VALUE.dtype, sharding=few)
    placed = jax.jit(lambda v: v, out_shardings=at)
    ways: dict[str, Callable[[Any], Any]] = {
        "results": placed,
        "arguments": jax.jit(lambda v: v, in_shardings=at),
        "constraint": lambda v: lax.with_sharding_constraint(v, at),
        "map": jitted(lambda v: v, mesh, (Spec("x"),), Spec("x")),
        "memory": lambda v: jax.device_put(v, host),
        "loop": lambda v: lax.fori_loop(0, 1, lambda _, u: placed(u), v),
    }
    for name in names:
        way = ways[name]
        with subtests.test(name=name):
            text = jax.jit(lambda v, way=way: way(v)).lower(VALUE).as_text()
            assert "mhlo.num_partitions = 8" in text
            moves = "annotate_device_placement" in text
            assert moves == (name == "memory") == ("pinned_host" in text)
        if name in ("constraint", "arguments", "map"):
            continue
        with subtests.test("two sets", name=name), pytest.raises(ValueError, match="devices"):
            jax.jit(lambda v, way=way: way(v)).lower(given)
    with subtests.test("nothing"):
        assert "num_partitions = 1" in jax.jit(lambda v: v).lower(VALUE).as_text()
        assert "num_partitions = 2" in jax.jit(lambda v: v).lower(given).as_text()
