"""What XLA's CPU compiler makes of programs, beside what JAX says of the same ones."""

from __future__ import annotations

import re

import numpy as np
import pytest

from harness.lanes.aot.optimized import read
from harness.lanes.hlo import Module
from harness.lanes.virtual.submitted import compilations, submissions

pytestmark = [pytest.mark.lanes("virtual-tpu"), pytest.mark.topologies("2x2")]


def test_what_the_partitioner_has_added() -> None:
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("slice", "chip"))
    rows = NamedSharding(mesh, PartitionSpec("slice"))
    x = jax.device_put(np.ones((4, 8), np.float32), rows)
    with compilations() as compiled:
        program = jax.jit(lambda x: x.sum(0)).lower(x).compile()
    (module,) = compiled
    (exchange,) = read(module, 4).collectives
    assert (exchange.kind, exchange.bytes) == ("all-reduce", 8 * 4)
    assert exchange.groups == ((0, 2), (1, 3))
    (theirs,) = program.runtime_executable().hlo_modules()
    ours, text = Module.FromString(module), theirs.to_string()
    for computation in ours.computations:
        for instruction in computation.instructions:
            assert f"%{instruction.name} = " in text
    assert theirs.name == ours.name


def test_one_that_is_refused() -> None:
    import jax

    refused = jax.jit(lambda x: x, compiler_options={"xla_no_such": "1"})
    with compilations() as compiled, pytest.raises(Exception, match=re.escape("xla_no_such")):
        refused(np.float32(1))
    assert not compiled


def test_another_listens_too() -> None:
    import jax

    with submissions() as submitted:
        with compilations() as compiled:
            jax.jit(lambda x: x + 1)(np.float32(1))
        jax.jit(lambda x: x + 2)(np.float32(1))
    assert (len(compiled), len(submitted)) == (1, 2)
