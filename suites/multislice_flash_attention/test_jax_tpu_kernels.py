"""Kernels that copy, wait and signal by themselves, in JAX without torch.

Only JAX's TPU interpret mode runs them, which simulates memory spaces, DMA and semaphores, and
looks for reads out of bounds and for races between devices (jax-ml/jax#25097).
"""

from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from harness.lanes.events import EventLog
from harness.model.topology import Topology
from suites.multislice_flash_attention import ragged
from suites.shared.global_arrays import Spec, mesh_of, on_each_device
from suites.shared.jax_releases import needs_tpu_interpret_mode

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("2x2"),
    pytest.mark.upstream("jax-ml/jax#25097"),
    pytest.mark.deadline(60),
    needs_tpu_interpret_mode,
]


@pytest.fixture(autouse=True)
def only_interpreted_as_on_a_tpu(tpu_events: EventLog) -> Any:
    yield
    events = tpu_events.read()
    assert {event.mode for event in events.of("kernel")} == {"tpu"}
    assert {event.fault for event in events.of("fault")} <= {"nan"}  # of what is left as it was


@pytest.mark.parametrize("batch", ragged.BATCHES.values(), ids=ragged.BATCHES)
def test_ragged_paged_attention(batch: ragged.Batch) -> None:
    from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ragged_paged_attention

    attention = partial(
        ragged_paged_attention,
        sm_scale=ragged.Batch.SCALE,
        sliding_window=batch.window,
        soft_cap=batch.soft_cap,
        num_kv_pages_per_block=2,
        num_queries_per_block=8,
    )
    result = np.asarray(jax.jit(attention)(*ragged.arguments(batch)))[: sum(batch.new)]
    ragged.assert_close(result, batch)


@pytest.mark.topologies("2x1")
def test_all_gather(topology: Topology) -> None:
    """JAX's own kernel: both halves travel around the ring, one in each direction.

    With more devices its steps share a semaphore, which can't tell one copy from the next: JAX's
    interpreter finds that race now and then. Copies that arrive in order, as on a TPU, have none.
    """
    from jax.experimental.pallas import tpu
    from jax.experimental.pallas.ops.tpu.all_gather import all_gather
    from jax.sharding import NamedSharding

    mesh = mesh_of(topology.total)
    x = np.arange(topology.total * 16 * 128, dtype=np.float32).reshape(-1, 128)
    sharded = jax.device_put(x, NamedSharding(mesh, Spec("x")))
    gathered = all_gather(sharded, mesh=mesh, axis_name="x", memory_space=tpu.VMEM)
    np.testing.assert_array_equal(gathered, x)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_copies_around_the_ring(topology: Topology, steps: int) -> None:
    """Each device sends what it has got on to the next one, so many times."""
    from jax import lax
    from jax.experimental import pallas
    from jax.experimental.pallas import tpu

    def body(x: Any, out: Any, scratch: Any, *semaphores: Any) -> None:
        copied, sent, received = semaphores
        device, count = lax.axis_index("x"), topology.total
        neighbors = ((device + 1) % count,), ((device - 1) % count,)
        load = tpu.make_async_copy(x, scratch.at[0], copied)
        load.start()
        load.wait()
        for step in range(steps):
            barrier = tpu.get_barrier_semaphore()  # the receiver has read what it had
            for neighbor in neighbors:
                pallas.semaphore_signal(barrier, device_id=neighbor)
            pallas.semaphore_wait(barrier, 2)
            copy = tpu.make_async_remote_copy(
                scratch.at[step % 2],
                scratch.at[(step + 1) % 2],
                sent.at[step % 2],
                received.at[step % 2],
                device_id=neighbors[0],
            )
            copy.start()
            copy.wait()
        store = tpu.make_async_copy(scratch.at[steps % 2], out, copied)
        store.start()
        store.wait()

    x = np.arange(topology.total * 8 * 128, dtype=np.float32).reshape(-1, 128)
    everywhere = pallas.BlockSpec(memory_space=pallas.ANY)
    dma = tpu.SemaphoreType.DMA
    fn = pallas.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((8, 128), x.dtype),
        in_specs=[everywhere],
        out_specs=everywhere,
        scratch_shapes=[tpu.VMEM((2, 8, 128), x.dtype), dma, dma((2,)), dma((2,))],
        compiler_params=tpu.CompilerParams(collective_id=0),
    )
    result = on_each_device(fn, mesh_of(topology.total), Spec("x"))(x)
    np.testing.assert_array_equal(result, np.roll(x, 8 * steps, axis=0))


@pytest.mark.parametrize("blocks", [(1, 1), (2, 2), (4, 1)])
def test_a_pipeline_inside_of_a_kernel(blocks: tuple[int, int]) -> None:
    """``emit_pipeline`` copies blocks in and out while it multiplies, on each device alone."""
    from jax.experimental import pallas
    from jax.experimental.pallas import tpu

    rows, depth = 128 // blocks[0], 128 // blocks[1]

    def multiply(a: Any, b: Any, c: Any) -> None:
        @pallas.when(pallas.program_id(1) == 0)
        def _() -> None:
            c[...] = jax.numpy.zeros_like(c)

        c[...] += jax.numpy.dot(a[...], b[...], preferred_element_type=np.float32)

    def body(a: Any, b: Any, c: Any) -> None:
        tpu.emit_pipeline(
            multiply,
            grid=blocks,
            in_specs=[
                pallas.BlockSpec((rows, depth), lambda i, j: (i, j)),
                pallas.BlockSpec((depth, 128), lambda i, j: (j, 0)),
            ],
            out_specs=[pallas.BlockSpec((rows, 128), lambda i, j: (i, 0))],
        )(a, b, c)

    everywhere = pallas.BlockSpec(memory_space=pallas.ANY)
    fn = pallas.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((128, 128), np.float32),
        in_specs=[everywhere, everywhere],
        out_specs=everywhere,
    )
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((128, 128), np.float32) for _ in range(2))
    np.testing.assert_allclose(jax.jit(fn)(a, b), a.astype(np.float64) @ b, rtol=1e-4, atol=1e-3)


@pytest.mark.upstream("jax-ml/jax#39179")
def test_indices_of_blocks_that_a_kernel_writes() -> None:
    """With one buffer a block is fetched after the step before it, which may say which block it is.

    With two buffers the second block is on its way before the first step writes anything.
    """
    import jax.numpy as jnp
    from jax.experimental import pallas
    from jax.experimental.pallas import tpu

    def body(indices: Any, x: Any, out: Any) -> None:
        for step in range(1, 4):
            indices[step] = 3
        out[...] = x[...]

    size = (None, 8, 128)
    one_buffer = pallas.Buffered(1)
    grid = tpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(4,),
        in_specs=[pallas.BlockSpec(size, lambda i, at: (at[i], 0, 0), pipeline_mode=one_buffer)],
        out_specs=pallas.BlockSpec(size, lambda i, _: (i, 0, 0)),
    )
    x = np.repeat(np.arange(4, dtype=np.float32), 8 * 128).reshape(4, 8, 128)
    fn = pallas.pallas_call(body, jax.ShapeDtypeStruct(x.shape, x.dtype), grid_spec=grid)
    result = jax.jit(fn)(jnp.array([2, 0, 0, 0], np.int32), x)
    np.testing.assert_array_equal(result, x[[2, 3, 3, 3]])
