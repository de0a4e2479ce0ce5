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


KERNELS = """
import jax, numpy as np, pytest
from jax.experimental import pallas
from jax.experimental.pallas import tpu

X = np.ones((8, 128), np.float32)

def run(body, *scratch):
    return jax.jit(pallas.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(X.shape, X.dtype),
        in_specs=[pallas.BlockSpec(memory_space=pallas.ANY)],
        scratch_shapes=[tpu.VMEM(X.shape, X.dtype), *scratch],
    ))(X)

def too_early(x, out, scratch, semaphore):
    copy = tpu.make_async_copy(x, scratch, semaphore)
    copy.start()
    out[...] = scratch[...]
    copy.wait()

def nothing_written(x, out, scratch):
    out[...] = scratch[...]

@pytest.mark.lanes("virtual-tpu")
@pytest.mark.topologies(1)
@pytest.mark.parametrize("body", [too_early, nothing_written])
def test_kernel(body):
    scratch = [tpu.SemaphoreType.DMA] if body is too_early else []
    np.testing.assert_array_equal(run(body, *scratch), X)

@pytest.mark.lanes("virtual-tpu")
@pytest.mark.topologies(1)
def test_nobody_looks():
    run(nothing_written).block_until_ready()
"""


def test_what_a_kernel_does_wrong(project: Project) -> None:
    project.write("test_inner.py", KERNELS)
    ran = project.run()
    raced = ran.properties("test_kernel[virtual-tpu-1-too_early]")
    assert raced["failure"].startswith("data race in Pallas kernel too_early: ")
    assert raced["pallas_faults"] == "nan too_early 1, race too_early 1"
    read = ran.properties("test_kernel[virtual-tpu-1-nothing_written]")
    assert read["failure"].startswith("NaN out of Pallas kernel nothing_written, which was given ")
    assert (read["pallas_interpreted"], read["pallas_tpu_interpreted"]) == ("1", "1")
    unseen = ran.properties("test_nobody_looks[virtual-tpu-1]")
    assert (unseen["outcome"], unseen["pallas_faults"]) == ("passed", "nan nothing_written 1")
