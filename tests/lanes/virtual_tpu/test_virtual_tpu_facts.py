"""What the record of a case says that it asked of the virtual TPU."""

from __future__ import annotations

from support.project import Project

CASES = """
import jax, numpy as np, pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

@pytest.mark.lanes("virtual-tpu")
@pytest.mark.topologies(2)
@pytest.mark.parametrize("over", ["or", "max"])
def test_reduce(over):
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), PartitionSpec("x"))
    reducer = {"or": jax.lax.bitwise_or, "max": jax.lax.max}[over]
    reduce = jax.jit(lambda v: jax.lax.reduce(v, np.int32(0), reducer, (0,)))
    assert reduce(jax.device_put(np.array([1, 2], np.int32), sharding)) == {"or": 3, "max": 2}[over]
"""


def test_what_was_rewritten(project: Project) -> None:
    project.write("test_inner.py", CASES)
    ran = project.run()
    assert ran.properties("test_reduce[virtual-tpu-2-or]")["rewritten"] == "reduce or 1"
    assert "rewritten" not in ran.properties("test_reduce[virtual-tpu-2-max]")
