"""Kernels in JAX's TPU interpret mode: copies, semaphores, other devices, and their faults."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from harness.lanes.events import EventLog
from harness.model.topology import Topology

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies(4),
    pytest.mark.measures_coverage,
    pytest.mark.deadline(60),
]

X = np.arange(8 * 128, dtype=np.float32).reshape(8, 128) / 100


def call(body: Callable[..., None], scratch: Any, **options: Any) -> Any:
    """A kernel over one float32[8, 128] that stays where it is."""
    import jax
    from jax.experimental import pallas

    return pallas.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(X.shape, X.dtype),
        in_specs=[pallas.BlockSpec(memory_space=pallas.ANY)],
        scratch_shapes=scratch,
        **options,
    )


def after_a_copy(then: Callable[[Any, Any], None], **options: Any) -> Any:
    """A kernel that copies its operand into VMEM, and calls ``then`` with that and its result."""
    from jax.experimental.pallas import tpu

    def body(x: Any, out: Any, scratch: Any, semaphore: Any) -> None:
        copy = tpu.make_async_copy(x, scratch, semaphore)
        copy.start()
        copy.wait()
        then(scratch, out)

    return call(body, [tpu.VMEM(X.shape, X.dtype), tpu.SemaphoreType.DMA], **options)


def double(scratch: Any, out: Any) -> None:
    out[...] = 2 * scratch[...]


def over_devices(function: Callable[[Any], Any], topology: Topology) -> Any:
    import jax
    from jax.sharding import Mesh, PartitionSpec

    mesh = Mesh(np.array(jax.devices()), ("x",))
    spec = PartitionSpec("x")
    mapped = jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    return jax.jit(mapped)(np.concatenate([X + 100 * n for n in range(topology.total)]))


def test_a_copy_into_scratch() -> None:
    import jax

    np.testing.assert_array_equal(jax.jit(after_a_copy(double))(X), 2 * X)


def over_cores() -> Any:
    """A kernel of ``pl.kernel``, which JAX lowers by a rule of its own."""
    import jax
    from jax.experimental import pallas
    from jax.experimental.pallas import tpu

    if not hasattr(pallas, "kernel"):
        pytest.skip("pallas.kernel was written since JAX 0.8")

    def body(x: Any, out: Any) -> None:
        def inner(scratch: Any, semaphore: Any) -> None:
            tpu.async_copy(x, scratch, semaphore).wait()
            scratch[...] *= 2
            tpu.async_copy(scratch, out, semaphore).wait()

        pallas.run_scoped(inner, tpu.VMEM(X.shape, X.dtype), tpu.SemaphoreType.DMA)

    mesh = tpu.create_tensorcore_mesh("core")
    return pallas.kernel(body, out_type=jax.ShapeDtypeStruct(X.shape, X.dtype), mesh=mesh)


def test_a_kernel_over_cores(topology: Topology) -> None:
    import jax

    kernel = over_cores()
    np.testing.assert_array_equal(jax.jit(kernel)(X), 2 * X)
    result = np.asarray(over_devices(kernel, topology)).reshape(4, *X.shape)
    np.testing.assert_allclose(result, [2 * (X + 100 * n) for n in range(4)], rtol=1e-6)


def test_a_scalar_and_references_from_outside_of_a_kernel_over_cores() -> None:
    """JAX's interpreter takes a scalar for the number of a buffer, and any reference for HBM's."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas
    from jax.experimental.pallas import tpu

    if not hasattr(jax, "new_ref"):
        pytest.skip("JAX before 0.10 has no references in a memory of a kernel's")
    mesh = tpu.create_tensorcore_mesh("core", num_cores=1)

    def f(x: Any, row: Any) -> Any:
        in_vmem = jax.new_ref(x, memory_space=tpu.VMEM)
        counts = pallas.empty_ref_like(tpu.SMEM((8,), jnp.int32))

        def first() -> None:
            in_vmem[2:] = in_vmem[2:] + 1
            for n in range(8):
                counts[n] = 10 * n

        def second() -> None:
            in_vmem[...] = in_vmem[...] * 2
            counts[5] = counts[5] + 1

        def copy_row(x: Any, out: Any) -> None:
            tpu.sync_copy(x.at[pallas.ds(row, 1)], out)

        pallas.core_map(mesh=mesh)(first)
        pallas.core_map(mesh=mesh)(second)
        result = jax.ShapeDtypeStruct((1, X.shape[1]), X.dtype)
        return in_vmem[...], counts[...], pallas.kernel(copy_row, out_type=result, mesh=mesh)(x)

    array, counts, copied = jax.jit(f)(X, 3)
    expected = X.copy()
    expected[2:] += 1
    np.testing.assert_allclose(array, expected * 2, rtol=1e-6)
    np.testing.assert_array_equal(counts, [0, 10, 20, 30, 40, 51, 60, 70])
    np.testing.assert_array_equal(copied, X[3:4])


def test_a_semaphore_that_kernels_over_cores_share() -> None:
    """One kernel starts a copy, another one waits for it; a core signals itself by its axis."""
    import jax
    from jax.experimental import pallas
    from jax.experimental.pallas import tpu

    if not hasattr(jax, "new_ref"):
        pytest.skip("JAX before 0.10 has no references in a memory of a kernel's")
    mesh = tpu.create_tensorcore_mesh("core", num_cores=1)

    def f(x: Any) -> Any:
        source, target = jax.new_ref(x), pallas.empty_ref_like(tpu.HBM(X.shape, X.dtype))
        copied = pallas.empty_ref_like(tpu.SemaphoreType.DMA(()))

        def start() -> None:
            def inner(own: Any) -> None:
                pallas.semaphore_signal(own, 2, device_id={"core": 0})
                pallas.semaphore_wait(own, 2)
                tpu.make_async_copy(source, target, copied).start()

            pallas.run_scoped(inner, tpu.SemaphoreType.REGULAR)

        def wait() -> None:
            tpu.make_async_copy(source, target, copied).wait()

        pallas.core_map(mesh=mesh)(start)
        pallas.core_map(mesh=mesh)(wait)
        return target[...]

    np.testing.assert_array_equal(jax.jit(f)(X), X)


def test_memory_that_a_kernel_allocates_where_it_needs_it() -> None:
    import jax
    from jax.experimental import pallas
    from jax.experimental.pallas import tpu

    if not hasattr(jax, "empty_ref"):
        pytest.skip("JAX before 0.10 has no jax.empty_ref")

    def body(x: Any, out: Any) -> None:
        whole = jax.empty_ref(jax.typeof(x).inner_aval, memory_space=tpu.VMEM)
        whole[...] = x[...] + 1

        def one_row(n: Any) -> None:
            row = jax.empty_ref(jax.ShapeDtypeStruct((1, 128), X.dtype), memory_space=tpu.VMEM)
            row[...] = whole[pallas.ds(n, 1), :] * 2
            out[pallas.ds(n, 1), :] = row[...]

        pallas.loop(0, 8)(one_row)

    f = pallas.pallas_call(body, out_shape=jax.ShapeDtypeStruct(X.shape, X.dtype))
    np.testing.assert_array_equal(jax.jit(f)(X), (X + 1) * 2)


def test_functions_on_two_kinds_of_cores_wait_for_each_other() -> None:
    """The scalar subcore starts what the vector subcores go on with, and ends when they have."""
    import jax
    from jax import lax
    from jax.experimental import pallas
    from jax.experimental.pallas import tpu

    if not hasattr(jax, "new_ref"):
        pytest.skip("JAX before 0.10 has no kernels over several kinds of cores")
    from jax.experimental.pallas import tpu_sc

    vector = tpu_sc.VectorSubcoreMesh(
        core_axis_name="core", subcore_axis_name="sub", num_cores=2, num_subcores=2
    )
    scalar = tpu_sc.ScalarSubcoreMesh(axis_name="core", num_cores=2)

    def on_vectors(x: Any, out: Any, shared: Any, go: Any, done: Any) -> None:
        core, sub = lax.axis_index("core"), lax.axis_index("sub")
        pallas.semaphore_wait(go, 1)
        tpu.sync_copy(shared, out.at[core, sub])
        pallas.semaphore_signal(done, device_id={"core": core})

    def on_scalar(x: Any, out: Any, shared: Any, go: Any, done: Any) -> None:
        core = lax.axis_index("core")
        tpu.sync_copy(x.at[core], shared)
        for sub in range(2):
            pallas.semaphore_signal(go, device_id={"sub": sub})
        pallas.semaphore_wait(done, 2)
        tpu.sync_copy(shared, out.at[core, 2])

    x = np.arange(16, dtype=np.int32).reshape(2, 8)
    kernel = pallas.kernel(
        [on_vectors, on_scalar],
        mesh=[vector, scalar],
        out_type=jax.ShapeDtypeStruct((2, 3, 8), x.dtype),
        scratch_types=[
            tpu.VMEM_SHARED((8,), x.dtype),
            tpu.SemaphoreType.REGULAR(()) @ vector,
            tpu.SemaphoreType.REGULAR(()) @ scalar,
        ],
    )
    np.testing.assert_array_equal(jax.jit(kernel)(x), np.stack([x] * 3, axis=1))


def test_tensorcores_that_wait_for_each_other(capfd: pytest.CaptureFixture[str]) -> None:
    """JAX would run each as a program of the virtual TPU, and its signals go to the first core."""
    import jax
    from jax import lax
    from jax.experimental import pallas
    from jax.experimental.pallas import tpu

    if not hasattr(jax, "new_ref"):
        pytest.skip("JAX before 0.10 can't name the cores of a kernel")

    def body(x: Any, out: Any) -> None:
        core = lax.axis_index("core")

        def inner(scratch: Any, semaphore: Any, there: Any) -> None:
            def copies() -> None:
                tpu.async_copy(x.at[0], scratch, semaphore).wait()
                tpu.async_copy(scratch, out.at[0], semaphore).wait()
                pallas.debug_print("core 1")
                pallas.semaphore_signal(there, core_index=0)

            pallas.when(core == 1)(copies)

            def adds() -> None:
                pallas.semaphore_signal(there)
                pallas.semaphore_wait(there, 2)
                tpu.async_copy(out.at[0], scratch, semaphore).wait()
                scratch[...] += 1
                tpu.async_copy(scratch, out.at[1], semaphore).wait()

            pallas.when(core == 0)(adds)

        types = tpu.SemaphoreType
        pallas.run_scoped(inner, tpu.VMEM(X.shape, X.dtype), types.DMA, types.REGULAR)

    mesh = tpu.create_tensorcore_mesh("core", num_cores=2)
    out = jax.ShapeDtypeStruct((2, *X.shape), X.dtype)
    result = jax.jit(pallas.kernel(body, out_type=out, mesh=mesh))(X[None])
    np.testing.assert_array_equal(result, [X, X + 1])
    assert "core 1" in capfd.readouterr().err


def test_cores_of_several_devices_wait_for_each_other(topology: Topology) -> None:
    """Each copies to the core of its number on the next device."""
    import jax
    from jax import lax
    from jax.experimental import pallas
    from jax.experimental.pallas import tpu

    if not hasattr(jax, "new_ref"):
        pytest.skip("JAX before 0.10 can't name the cores of a kernel")

    def body(x: Any, out: Any) -> None:
        rows = pallas.ds(lax.axis_index("core") * 4, 4)
        right = (lax.axis_index("x") + 1) % topology.total

        def inner(ready: Any, sent: Any, received: Any) -> None:
            pallas.semaphore_signal(ready, device_id={"x": (right - 2) % topology.total})
            pallas.semaphore_wait(ready, 1)
            copy = tpu.make_async_remote_copy(
                x.at[rows], out.at[rows], sent, received, device_id={"x": right}
            )
            copy.start()
            copy.wait()

        types = tpu.SemaphoreType
        pallas.run_scoped(inner, types.REGULAR, types.DMA, types.DMA)

    mesh = tpu.create_tensorcore_mesh("core", num_cores=2)
    kernel = pallas.kernel(body, out_type=jax.ShapeDtypeStruct(X.shape, X.dtype), mesh=mesh)
    result = np.asarray(over_devices(kernel, topology)).reshape(topology.total, *X.shape)
    np.testing.assert_array_equal(result, np.roll([X + 100 * n for n in range(4)], 1, 0))


def test_a_read_out_of_bounds_on_one_of_several_cores(tpu_events: EventLog) -> None:
    """Another core waits for what the failing one would do."""
    import jax
    from jax import lax
    from jax.experimental import pallas
    from jax.experimental.pallas import tpu

    if not hasattr(jax, "new_ref"):
        pytest.skip("JAX before 0.10 can't name the cores of a kernel")

    def body(x: Any, out: Any) -> None:
        def inner(semaphore: Any) -> None:
            def fails() -> None:
                tpu.sync_copy(x.at[lax.axis_index("core") + 7], out.at[0])
                pallas.semaphore_signal(semaphore, core_index=0)

            pallas.when(lax.axis_index("core") == 1)(fails)

            def waits() -> None:
                pallas.semaphore_wait(semaphore, 1)

            pallas.when(lax.axis_index("core") == 0)(waits)

        pallas.run_scoped(inner, tpu.SemaphoreType.REGULAR)

    mesh = tpu.create_tensorcore_mesh("core", num_cores=2)
    kernel = pallas.kernel(body, out_type=jax.ShapeDtypeStruct((8, 128), X.dtype), mesh=mesh)
    with pytest.raises(Exception, match="Out-of-bounds read"):
        jax.block_until_ready(jax.jit(kernel)(X))
    assert {fault for fault, _ in faults(tpu_events)} == {"error"}


def test_a_copy_of_what_a_kernel_selects() -> None:
    """The part of a selected array, which another selection has, and one of two semaphores."""
    import jax
    from jax.experimental import pallas
    from jax.experimental.pallas import tpu

    if not hasattr(pallas, "select_ref"):
        pytest.skip("JAX before 0.10 has no pl.select_ref")

    def body(first: Any, second: Any, out: Any, semaphores: Any) -> None:
        def one_pair(n: Any) -> None:
            rows = pallas.ds(n * 2, 2)
            inner = pallas.select_ref(0, first.at[...], second)
            source = pallas.select_ref(n % 2, inner, second).at[rows]
            semaphore = pallas.select_ref(n // 2, semaphores.at[0], semaphores.at[1])
            tpu.async_copy(source, out.at[rows], semaphore).wait()

        pallas.loop(0, 4)(one_pair)

    anywhere = pallas.BlockSpec(memory_space=pallas.ANY)
    f = pallas.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(X.shape, X.dtype),
        in_specs=[anywhere, anywhere],
        out_specs=anywhere,
        scratch_shapes=[tpu.SemaphoreType.DMA((2,))],
    )
    expected = np.where((np.arange(8) // 2 % 2 == 0)[:, None], X, -X)
    np.testing.assert_array_equal(jax.jit(f)(X, -X), expected)


def test_random_keys_of_jax_as_operands() -> None:
    import jax
    from jax.experimental import pallas
    from jax.experimental.pallas import tpu

    if jax.__version_info__ < (0, 10):
        pytest.skip("this JAX can't lower a kernel that takes one key in VMEM")

    def body(key: Any, out: Any) -> None:
        out[...] = jax.random.normal(key[...], shape=out.shape)

    vmem = [pallas.BlockSpec(memory_space=tpu.VMEM)]
    out = jax.ShapeDtypeStruct(X.shape, X.dtype)
    f = pallas.pallas_call(body, out_shape=out, in_specs=vmem)
    key = jax.random.key(7, impl="threefry2x32")
    with jax.threefry_partitionable(True):
        result, expected = jax.jit(f)(key), jax.random.normal(key, shape=X.shape)
    np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_random_keys_of_a_tpus_generator() -> None:
    """Numbers depend on the key and on what is folded into it."""
    import jax
    from jax.experimental import pallas
    from jax.experimental.pallas import tpu

    if jax.__version_info__ < (0, 10):
        pytest.skip("JAX before 0.10 can't interpret a kernel that takes such keys")

    def body(key: Any, out: Any) -> None:
        def copied(own: Any, other: Any) -> None:
            tpu.sync_copy(key, own)
            out[0] = jax.random.uniform(own[...], X.shape)
            tpu.sync_copy(key, other)
            out[6] = jax.random.uniform(other[...], X.shape)

        spaces = tpu.SMEM, pallas.MemorySpace.KEY
        pallas.run_scoped(copied, *(space((), key.dtype) for space in spaces))
        out[1] = jax.random.uniform(key[...], X.shape)
        for n in range(2):
            out[2 + 3 * n] = jax.random.uniform(jax.random.fold_in(key[...], n), X.shape)
        tpu.prng_seed(key[...])
        out[3] = tpu.stateful_uniform(X.shape)
        out[4] = tpu.stateful_uniform(X.shape)

    smem = pallas.BlockSpec(memory_space=tpu.SMEM)
    key = tpu.to_pallas_key(jax.random.key(0, impl="rbg"))
    out = jax.ShapeDtypeStruct((7, *X.shape), X.dtype)
    numbers = jax.jit(pallas.pallas_call(body, out_shape=out, in_specs=[smem]))(key)
    np.testing.assert_array_equal(numbers[1], numbers[0])
    np.testing.assert_array_equal(numbers[6], numbers[0])
    np.testing.assert_array_equal(numbers[3], numbers[0])
    different = np.asarray(numbers)[[0, 2, 4, 5]]
    assert len(np.unique(different)) > 0.99 * different.size
    np.testing.assert_allclose(different.mean((1, 2)), 0.5, atol=0.05)


def test_numbers_of_a_tpus_key_are_counted(tpu_events: EventLog) -> None:
    """A kernel that only has a key asks for no raw bits itself."""
    import jax
    from jax.experimental import pallas
    from jax.experimental.pallas import tpu

    if jax.__version_info__ < (0, 10):
        pytest.skip("JAX before 0.10 can't interpret a kernel that takes such keys")

    def body(key: Any, out: Any) -> None:
        out[...] = jax.random.uniform(key[...], X.shape)

    smem = pallas.BlockSpec(memory_space=tpu.SMEM)
    out = jax.ShapeDtypeStruct(X.shape, X.dtype)
    key = tpu.to_pallas_key(jax.random.key(0, impl="rbg"))
    jax.block_until_ready(jax.jit(pallas.pallas_call(body, out_shape=out, in_specs=[smem]))(key))
    assert [event.rewrite for event in tpu_events.read().of("rewrite")] == [
        "random numbers of a TPU"
    ]


@pytest.mark.parametrize("dtype", ["int4", "uint4", "float4_e2m1fn"])
def test_numbers_smaller_than_a_byte(dtype: str) -> None:
    """XLA packs two into a byte, and NumPy does not."""
    import jax
    from jax.experimental import pallas

    if not hasattr(jax.numpy, dtype):
        pytest.skip(f"this JAX has no {dtype}")

    def body(x: Any, out: Any) -> None:
        out[...] = x[...]

    f = pallas.pallas_call(body, out_shape=jax.ShapeDtypeStruct(X.shape, dtype))
    given = (X % 6).astype(dtype)
    np.testing.assert_array_equal(jax.jit(f)(given), given)


def views() -> dict[str, tuple[Callable[[Any, Any], None], Callable[[Any], Any]]]:
    """What a kernel does with float32[8, 128] in VMEM and its result, and what NumPy does."""
    from jax.experimental.pallas import tpu

    def rows(array: Any) -> Any:
        return array.reshape(4, 2, 128)

    def load(scratch: Any, out: Any) -> None:
        out[:4] = scratch.reshape(4, 2, 128)[:, 1]
        out[4:] = scratch.reshape(4, 2, 128)[:, 0]

    def store(scratch: Any, out: Any) -> None:
        scratch.reshape(4, 2, 128)[:, 1] = scratch.reshape(4, 2, 128)[:, 0] + 1
        out[...] = scratch[...]

    def masked(scratch: Any, out: Any) -> None:
        import jax.numpy as jnp

        even = jnp.arange(128)[None, :] % 2 + jnp.zeros((2, 1), jnp.int32) == 0
        tpu.store(scratch.at[2:4], scratch[4:6], mask=even)
        out[...] = scratch[...]

    def stored(array: Any) -> Any:
        whole = array.copy()
        rows(whole)[:, 1] = rows(array)[:, 0] + 1
        return whole

    def where_even(array: Any) -> Any:
        whole = array.copy()
        whole[2:4, ::2] = array[4:6, ::2]
        return whole

    return {
        "load": (load, lambda array: np.concatenate([rows(array)[:, 1], rows(array)[:, 0]])),
        "store": (store, stored),
        "masked store": (masked, where_even),
    }


@pytest.mark.parametrize("view", ["load", "store", "masked store"])
def test_views_of_a_reference(view: str) -> None:
    """JAX's own interpreter has no reshaped reference, and takes most masks for out of bounds."""
    import jax

    then, expected = views()[view]
    np.testing.assert_array_equal(jax.jit(after_a_copy(then))(X), expected(X))


def test_pairs_of_rows_as_wider_numbers() -> None:
    """``bitcast`` of bfloat16[16, 128]: the first row of each pair is in the low bits."""
    import jax
    from jax.experimental import pallas

    x = np.arange(16 * 128, dtype=np.uint16).reshape(16, 128)

    def body(x: Any, out: Any) -> None:
        out[...] = x.bitcast(np.uint32)[...]

    f = pallas.pallas_call(body, out_shape=jax.ShapeDtypeStruct((8, 128), np.uint32))
    expected = x[::2] + (x[1::2].astype(np.uint32) << 16)
    np.testing.assert_array_equal(jax.jit(f)(x), expected)


def through_views(source: Callable[[Any], Any], target: Callable[[Any], Any]) -> Any:
    """A kernel that copies its operand's view into a view of VMEM, and returns twice that."""
    from jax.experimental.pallas import tpu

    def body(x: Any, out: Any, scratch: Any, semaphore: Any) -> None:
        tpu.async_copy(source(x), target(scratch), semaphore).wait()
        out[...] = 2 * scratch[...]

    return call(body, [tpu.VMEM(X.shape, X.dtype), tpu.SemaphoreType.DMA])


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (lambda x: x.reshape(4, 2, 128), lambda scratch: scratch.reshape(4, 2, 128)),
        (lambda x: x.bitcast(np.int32), lambda scratch: scratch.bitcast(np.int32)),
        (lambda x: x.reshape(4, 2, 128).at[...], lambda scratch: scratch.reshape(4, 2, 128).at[:]),
        (
            lambda x: x.at[:8].reshape(2, 4, 128).bitcast(np.uint32),
            lambda scratch: scratch.at[0:8].reshape(2, 4, 128).bitcast(np.uint32),
        ),
    ],
    ids=["reshaped", "bitcast", "whole", "both"],
)
def test_copies_through_views(source: Callable[[Any], Any], target: Callable[[Any], Any]) -> None:
    import jax

    np.testing.assert_array_equal(jax.jit(through_views(source, target))(X), 2 * X)


@pytest.mark.parametrize("dtype", ["float32", "int8", "uint4"])
def test_copies_of_parts_of_views(dtype: str) -> None:
    """Each touches what it names and nothing else: the copies, all under way, would seem to race.

    Three rows from the middle of a pair on are no box.
    """
    import jax
    from jax.experimental import pallas
    from jax.experimental.pallas import tpu

    if dtype == "uint4" and not hasattr(jax, "new_ref"):
        pytest.skip("this JAX has no bitcast of references to such numbers")
    wide = {"float32": 1, "int8": 4, "uint4": 8}[dtype]

    def body(x: Any, out: Any, semaphores: Any) -> None:
        source, target = (ref.reshape(8 * wide, 128).bitcast(np.int32) for ref in (x, out))
        copies = [
            tpu.make_async_copy(source.at[rows], target.at[rows], semaphores.at[n])
            for n, rows in enumerate(itertools.starmap(pallas.ds, [(0, 1), (1, 3), (4, 4)]))
        ]
        for copy in copies:
            copy.start()
        for copy in copies:
            copy.wait()

    anywhere = pallas.BlockSpec(memory_space=pallas.ANY)
    x = (np.arange(8 * wide * 128) % 7).astype(dtype).reshape(4, 2 * wide, 128)
    f = pallas.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        in_specs=[anywhere],
        out_specs=anywhere,
        scratch_shapes=[tpu.SemaphoreType.DMA((3,))],
    )
    np.testing.assert_array_equal(jax.jit(f)(x), x)


def to_the_right(*, copies: int = 1) -> Any:
    """Every device sends its array to the next one, once all have entered the kernel."""
    import jax
    from jax import lax
    from jax.experimental import pallas
    from jax.experimental.pallas import tpu

    def body(x: Any, out: Any, sent: Any, received: Any) -> None:
        device, count = lax.axis_index("x"), lax.axis_size("x")
        barrier = tpu.get_barrier_semaphore()
        for other in range(1, jax.device_count()):
            pallas.semaphore_signal(barrier, device_id=((device + other) % count,))
        pallas.semaphore_wait(barrier, jax.device_count() - 1)
        right = ((device + 1) % count,)
        sending = [
            tpu.make_async_remote_copy(x, out, sent, received, device_id=right)
            for _ in range(copies)
        ]
        for copy in sending:
            copy.start()
        for copy in sending:
            copy.wait()

    return call(
        body,
        [tpu.SemaphoreType.DMA, tpu.SemaphoreType.DMA],
        out_specs=pallas.BlockSpec(memory_space=pallas.ANY),
        compiler_params=tpu.CompilerParams(collective_id=0),
    )


def test_copies_to_other_devices(topology: Topology) -> None:
    result = over_devices(to_the_right(), topology)
    expected = np.concatenate([X + 100 * ((n - 1) % topology.total) for n in range(topology.total)])
    np.testing.assert_array_equal(result, expected)


def faults(log: EventLog) -> set[tuple[str, str]]:
    return {(event.fault, event.kernel) for event in log.read().of("fault")}


def test_a_race_between_devices(topology: Topology, tpu_events: EventLog) -> None:
    with pytest.raises(Exception, match="Pallas kernel 'body' has a data race"):
        over_devices(to_the_right(copies=2), topology).block_until_ready()
    assert faults(tpu_events) == {("race", "body")}


def test_a_read_while_a_copy_writes(tpu_events: EventLog) -> None:
    import jax
    from jax.experimental.pallas import tpu

    def body(x: Any, out: Any, scratch: Any, semaphore: Any) -> None:
        copy = tpu.make_async_copy(x, scratch, semaphore)
        copy.start()
        out[...] = 2 * scratch[...]
        copy.wait()

    f = call(body, [tpu.VMEM(X.shape, X.dtype), tpu.SemaphoreType.DMA])
    with pytest.raises(Exception, match="Pallas kernel 'body' has a data race"):
        jax.jit(f)(X).block_until_ready()
    assert faults(tpu_events) == {("nan", "body"), ("race", "body")}


def test_a_read_of_memory_that_nothing_was_written_to(tpu_events: EventLog) -> None:
    import jax
    from jax.experimental.pallas import tpu

    def body(x: Any, out: Any, scratch: Any) -> None:
        scratch[:4] = out[:4] * 0
        out[...] = scratch[...]

    result = jax.jit(call(body, [tpu.VMEM(X.shape, X.dtype)]))(X)
    assert np.isnan(result).any()
    assert faults(tpu_events) == {("nan", "body")}


def test_integers_that_nothing_was_written_to() -> None:
    """A TPU fills the buffers of a pipeline with the smallest."""
    import jax
    from jax.experimental import pallas

    def body(out: Any) -> None:
        out[:4] = out[:4] * 0

    out = jax.ShapeDtypeStruct((8, 128), np.int32)
    result = jax.jit(pallas.pallas_call(body, out_shape=out))()
    np.testing.assert_array_equal(result, np.repeat([0, -(2**31)], 4)[:, None] + np.zeros(128, int))


def test_a_read_out_of_bounds(tpu_events: EventLog) -> None:
    import jax
    from jax.experimental import pallas

    def shifted(scratch: Any, out: Any) -> None:
        for row in range(8):
            out[row, :] = scratch[pallas.program_id(0) + row + 1, :]

    with pytest.raises(Exception, match="Out-of-bounds read"):
        jax.jit(after_a_copy(shifted, grid=(1,)))(X).block_until_ready()
    assert faults(tpu_events) == {("error", "body")}


def test_a_kernel_prints(capfd: pytest.CaptureFixture[str]) -> None:
    import jax
    from jax import lax
    from jax.experimental import pallas

    def body(x: Any, out: Any) -> None:
        pallas.debug_print("before")
        lax.fori_loop(0, 2, lambda i, _: pallas.debug_print("row {}", i) or 0, 0)
        pallas.debug_print("first ", x[0, 1])
        pallas.debug_print("all {}", (x[0] * 100 + 0.5).astype(np.int32))
        pallas.debug_print("rows {}", x[:2, :2])
        out[...] = x[...]

    def index(n: Any) -> Any:
        pallas.debug_print("block {}", n)
        return n, 0

    f = pallas.pallas_call(
        body,
        grid=1,
        in_specs=[pallas.BlockSpec(X.shape, index)],
        out_shape=jax.ShapeDtypeStruct(X.shape, X.dtype),
    )
    np.testing.assert_array_equal(jax.jit(f)(X), X)
    whole = ", ".join(map(str, range(128)))
    printed = capfd.readouterr().err
    assert "block 0\n" in printed
    assert printed.endswith(
        "before\nrow 0\nrow 1\nfirst f32[] 0.01\n"
        f"all s32[128] {{{whole}}}\nrows f32[2,2] {{\n{{0, 0.01}},\n{{1.28, 1.29}}\n}}\n"
    )


@pytest.mark.parametrize("place", ["device", "devices", "loop"])
@pytest.mark.parametrize("has_effects", [True, False])
def test_a_kernel_whose_result_nobody_reads(
    topology: Topology,
    tpu_events: EventLog,
    place: str,
    has_effects: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    """With side effects a TPU runs it, so that its fault is seen; without, it is removed."""
    import jax
    from jax import lax
    from jax.experimental import pallas
    from jax.experimental.pallas import tpu

    def shifted(scratch: Any, out: Any) -> None:
        for row in range(8):
            out[row, :] = scratch[pallas.program_id(0) + row + 1, :]

    kernel = after_a_copy(
        shifted, grid=(1,), compiler_params=tpu.CompilerParams(has_side_effects=has_effects)
    )

    def step(x: Any) -> Any:
        return lax.select(jax.numpy.full(x.shape, fill_value=False), kernel(x), x + 1)

    def run() -> Any:
        if place == "device":
            return jax.jit(step)(X)
        if place == "devices":
            return over_devices(step, topology)
        return over_devices(lambda x: lax.fori_loop(0, 2, lambda _, v: step(v), x), topology)

    if not has_effects:
        np.testing.assert_allclose(run()[:8], X + (2 if place == "loop" else 1), rtol=1e-6)
        assert not faults(tpu_events)
        return
    with pytest.raises(Exception, match="Out-of-bounds read"):
        run().block_until_ready()
    assert faults(tpu_events) == {("error", "body")}


def test_devices_that_run_a_kernel_of_their_own(topology: Topology) -> None:
    """One that reaches no other device is not waited for."""
    from jax import lax

    f = after_a_copy(double)
    result = over_devices(
        lambda x: lax.cond(lax.axis_index("x") == 1, lambda v: f(f(v)), lambda v: v, x), topology
    )
    expected = np.concatenate([(X + 100 * n) * (4 if n == 1 else 1) for n in range(topology.total)])
    np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_a_kernel_that_compiles_while_axes_and_a_mesh_are_known(topology: Topology) -> None:
    """So does a shard_map outside of jit."""
    import jax
    from jax.experimental import pallas
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    def body(x: Any, out: Any) -> None:
        out[...] = x[...] + pallas.program_id(0) * 2

    mesh, spec = jax.make_mesh((topology.total,), ("x",)), PartitionSpec("x")
    block = pallas.BlockSpec((8, 128), lambda n: (n, 0))
    shape = jax.ShapeDtypeStruct((24, 128), np.int32)
    f = pallas.pallas_call(body, grid=(3,), in_specs=[block], out_specs=block, out_shape=shape)
    f = jax.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    x = jax.device_put(np.zeros((24 * topology.total, 128), np.int32), NamedSharding(mesh, spec))
    lowered = jax.jit(f).lower(x)
    around = mesh.abstract_mesh.update_axis_types({"x": AxisType.Auto})
    with (
        jax._src.core.extend_axis_env_nd([("x", topology.total)]),
        jax._src.mesh.use_abstract_mesh(around),
    ):
        compiled = lowered.compile()
    blocks = np.asarray(compiled(x)).reshape(-1, 3, 8 * 128)
    np.testing.assert_array_equal(blocks.min(-1), [[0, 2, 4]] * topology.total)
    np.testing.assert_array_equal(blocks.max(-1), [[0, 2, 4]] * topology.total)


def test_kernels_and_collectives_that_do_not_wait_for_each_other(topology: Topology) -> None:
    """None of the four depends on another: the compiler may put their steps in any order."""
    from jax import lax

    alone, together = after_a_copy(double), to_the_right()

    def step(x: Any) -> Any:
        return alone(x) + together(x) + alone(x + 1) + lax.psum(x, "x")

    result = over_devices(lambda x: lax.fori_loop(0, 2, lambda _, v: step(v), x), topology)
    expected = np.stack([X.astype(np.float64) + 100 * n for n in range(topology.total)])
    for _ in range(2):
        expected = 4 * expected + 2 + np.roll(expected, 1, axis=0) + expected.sum(axis=0)
    np.testing.assert_allclose(result, expected.reshape(-1, 128), rtol=1e-5)


def start_and_done(shape: tuple[int, ...], started: Callable[..., None]) -> tuple[Any, Any]:
    """Return two kernels: one starts copies of its operand to a result, one waits for them.

    Args:
        shape: of the semaphores that go from the first to the second.
        started: the first kernel's body: its operand, the copy, and the semaphores.
    """
    import jax
    from jax.experimental import pallas
    from jax.experimental.pallas import tpu

    array = jax.ShapeDtypeStruct(X.shape, X.dtype)
    anywhere = pallas.BlockSpec(memory_space=pallas.ANY)
    semaphores = pallas.BlockSpec(memory_space=tpu.SEMAPHORE)

    def wait(x: Any, copy: Any, semaphores: Any, out: Any) -> None:
        del out  # where the copy is
        for index in np.ndindex(shape):
            semaphore = semaphores.at[index] if shape else semaphores
            whole = x if not shape else x.at[pallas.ds(index[0] * 4, 4)]
            there = copy if not shape else copy.at[pallas.ds(index[0] * 4, 4)]
            tpu.make_async_copy(whole, there, semaphore).wait()

    start = pallas.pallas_call(
        started,
        out_shape=(array, tpu.SemaphoreType.DMA(shape)),
        in_specs=[anywhere],
        out_specs=(anywhere, semaphores),
    )
    done = pallas.pallas_call(
        wait,
        out_shape=array,
        in_specs=[anywhere, anywhere, semaphores],
        out_specs=anywhere,
        input_output_aliases={1: 0},
    )
    return start, done


def copy_halves(x: Any, copy: Any, semaphores: Any) -> None:
    """Start a copy for each half of an array, each with a semaphore of its own."""
    from jax.experimental import pallas
    from jax.experimental.pallas import tpu

    for half in range(2):
        rows = pallas.ds(half * 4, 4)
        tpu.make_async_copy(x.at[rows], copy.at[rows], semaphores.at[half]).start()


def test_a_copy_that_another_kernel_waits_for() -> None:
    """Two in flight at once, in a loop, and of one semaphore and of two."""
    import jax
    from jax.experimental.pallas import tpu

    start, done = start_and_done((), lambda x, to, s: tpu.make_async_copy(x, to, s).start())
    start_two, done_two = start_and_done((2,), copy_halves)

    def step(_: int, x: Any) -> Any:
        first, second = start(x), start_two(x + 1)
        return done(x, *first) + done_two(x + 1, *second)

    result = jax.jit(lambda x: jax.lax.fori_loop(0, 3, step, x))(X)
    expected = X
    for _ in range(3):
        expected = expected + (expected + np.float32(1))
    np.testing.assert_array_equal(result, expected)


def test_what_one_kernel_counts_another_one_has(capfd: pytest.CaptureFixture[str]) -> None:
    """Copies of one half are not enough for a wait for both; a count that is left is reported."""
    import jax

    def one_half(x: Any, copy: Any, semaphores: Any) -> None:
        from jax.experimental import pallas
        from jax.experimental.pallas import tpu

        rows = pallas.ds(0, 4)
        for _ in range(2):  # one more than is waited for
            tpu.make_async_copy(x.at[rows], copy.at[rows], semaphores.at[0]).start()
        tpu.make_async_copy(x.at[rows], copy.at[rows], semaphores.at[1]).start()

    start, done = start_and_done((2,), one_half)
    result = jax.jit(lambda x: done(x, *start(x)))(X)
    np.testing.assert_array_equal(result[:4], X[:4])
    assert "has non-zero count" in capfd.readouterr().out


def test_a_result_in_vmem_in_the_place_of_an_operand() -> None:
    """It is the operand where the kernel writes nothing, also under strict promotion of dtypes."""
    import jax
    from jax.experimental import pallas
    from jax.experimental.pallas import tpu

    if jax.__version_info__ < (0, 8):
        pytest.skip("JAX before 0.8 has no arrays in VMEM outside of kernels")
    vmem = pallas.BlockSpec(memory_space=tpu.VMEM)

    def one_row(x: Any, out: Any) -> None:
        del x
        out[0, :] = out[0, :] * 2

    kernel = pallas.pallas_call(
        one_row,
        out_shape=tpu.VMEM(X.shape, X.dtype),
        in_specs=[vmem],
        out_specs=vmem,
        input_output_aliases={0: 0},
    )
    with jax.numpy_dtype_promotion("strict"):
        result = jax.jit(kernel)(X)
    np.testing.assert_array_equal(result[0], X[0] * 2)
    np.testing.assert_array_equal(result[1:], X[1:])


def test_a_pinned_buffer_that_a_kernel_changes() -> None:
    """XLA's CPU compiler has no buffers: the array in one takes its place."""
    import jax
    from jax._src.state import primitives
    from jax.experimental import pallas
    from jax.experimental.pallas import tpu

    if not hasattr(primitives, "pin"):
        pytest.skip("this JAX pins no buffers")

    def step(x: Any) -> Any:
        def one_row(x: Any, out: Any) -> None:
            tpu.sync_copy(x.at[1:2], out.at[0:1])

        pinned, anywhere = primitives.pin(x), pallas.BlockSpec(memory_space=pallas.ANY)
        kernel = pallas.pallas_call(
            one_row,
            out_shape=pinned,
            in_specs=[anywhere],
            out_specs=anywhere,
            input_output_aliases={0: 0},
        )
        return primitives.unpin(kernel(pinned))

    expected = X.copy()
    expected[0] = X[1]
    np.testing.assert_array_equal(jax.jit(step)(X), expected)
    np.testing.assert_array_equal(jax.jit(lambda x: primitives.unpin(primitives.pin(x)))(X), X)


def test_metadata_of_a_kernel_in_the_optimized_program() -> None:
    import jax
    from jax.experimental import pallas

    if jax.__version_info__ < (0, 8):
        pytest.skip("this JAX gives a kernel's custom call no metadata")

    def body(x: Any, out: Any) -> None:
        out[...] = x[...]

    out = jax.ShapeDtypeStruct(X.shape, X.dtype)
    f = pallas.pallas_call(body, out_shape=out, metadata={"author": "somebody"})
    assert '"author":"somebody"' in jax.jit(f).lower(X).compile().as_text()


def on_a_subcore(body: Callable[..., None], *results: Any) -> Any:
    """A kernel over a vector subcore of a SparseCore, with operands and results in its VMEM."""
    import jax
    from jax.experimental import pallas
    from jax.experimental.pallas import tpu

    if not hasattr(jax, "new_ref"):
        pytest.skip("JAX before 0.10 can't interpret kernels of SparseCores")
    from jax.experimental.pallas import tpu_sc

    mesh = tpu_sc.VectorSubcoreMesh(
        core_axis_name="core", subcore_axis_name="subcore", num_cores=1, num_subcores=1
    )

    def called(*operands: Any) -> Any:
        def whole(*references: Any) -> None:
            def inner(*local: Any) -> None:
                for source, target in zip(references[: len(operands)], local, strict=False):
                    tpu.sync_copy(source, target)
                body(*local)
                targets = references[len(operands) :]
                for source, target in zip(local[len(operands) :], targets, strict=True):
                    tpu.sync_copy(source, target)

            arrays = [*operands, *results]
            pallas.run_scoped(inner, *(tpu.VMEM(each.shape, each.dtype) for each in arrays))

        options = tpu.CompilerParams(needs_layout_passes=False)  # JAX 0.12 packs only so
        kernel = pallas.kernel(whole, out_type=list(results), mesh=mesh, compiler_params=options)
        return kernel(*operands)

    return jax.jit(called)


def test_operations_of_a_sparse_core_on_values() -> None:
    import jax
    import jax.numpy as jnp

    keys, values = np.array([3, -1, 3, 0, 7, -5, 2, 1], np.int32), np.arange(8, dtype=np.float32)
    mask = np.array([1, 1, 0, 1, 1, 1, 0, 1], np.int32)
    row = jax.ShapeDtypeStruct((8,), np.int32)

    def body(k: Any, v: Any, m: Any, *out: Any) -> None:
        from jax.experimental.pallas import tpu_sc as sc

        is_in = m[...] == 1
        packed = sc.pack(k[...], k[...] + 1, format=sc.PackFormat.INTERLEAVED)
        first, second = sc.unpack(packed, format=sc.PackFormat.INTERLEAVED)
        counts, last = sc.scan_count(k[...])
        each = [
            *sc.sort_key_val(k[...], v[...], mask=is_in, descending=True)[:2],
            sc.cummax(k[...], mask=is_in),
            sc.cumsum(k[...], mask=is_in),
            first + second,
            counts + 10 * last.astype(jnp.int32),
            sc.all_reduce_population_count(is_in) + 100 * sc.all_reduce_ffs(is_in),
        ]
        for reference, value in zip(out, each, strict=True):
            reference[...] = value

    results = on_a_subcore(body, row, jax.ShapeDtypeStruct((8,), np.float32), *[row] * 5)
    got = [np.asarray(each).tolist() for each in results(keys, values, mask)]
    assert got == [
        [7, 3, 1, 0, -1, -5, 3, 2],
        [4, 0, 7, 3, 1, 5, 2, 6],
        [3, 3, 3, 3, 7, 7, 7, 7],
        [3, 2, 2, 2, 9, 4, 4, 5],
        (2 * keys + 1).tolist(),
        [1, 11, 12, 11, 11, 11, 11, 11],
        [6] * 8,
    ]


def test_operations_of_a_sparse_core_on_memory() -> None:
    import jax

    x, at = np.arange(8, dtype=np.int32) * 10, np.array([7, 0, 7, 3, 1, 1, 2, 5], np.int32)
    row = jax.ShapeDtypeStruct((8,), np.int32)

    def body(x: Any, at: Any, *out: Any) -> None:
        from jax.experimental.pallas import tpu_sc as sc

        gathered, scattered, compressed, expanded, looped = out
        gathered[...] = sc.load_gather(x, [at[...]])
        scattered[...] = x[...]
        sc.addupdate_scatter(scattered, [at[...]], x[...])
        is_odd = at[...] % 2 == 1
        compressed[...] = x[...] * 0
        sc.store_compressed(compressed.at[...], x[...], mask=is_odd)
        expanded[...] = sc.load_expanded(x.at[...], mask=is_odd) * is_odd

        def iteration(n: Any) -> None:
            sc.store_scatter(looped, [at[...] * 0 + n], x[...] * 0 + n * n)

        sc.parallel_loop(0, 8)(iteration)

    results = on_a_subcore(body, *[row] * 5)
    got = [np.asarray(each).tolist() for each in results(x, at)]
    added = x.copy()
    np.add.at(added, at, x)
    assert got == [
        x[at].tolist(),
        added.tolist(),
        [0, 20, 30, 40, 50, 70, 0, 0],
        [0, 0, 10, 20, 30, 40, 0, 50],
        [n * n for n in range(8)],
    ]


def test_each_subcore_knows_which_it_is() -> None:
    """JAX's interpreter takes every subcore for the first."""
    import jax
    from jax import lax
    from jax.experimental import pallas
    from jax.experimental.pallas import tpu

    if not hasattr(jax, "new_ref"):
        pytest.skip("JAX before 0.10 can't interpret kernels of SparseCores")
    from jax.experimental.pallas import tpu_sc

    def body(x: Any, out: Any) -> None:
        number = lax.axis_index("subcore")
        tpu.sync_copy(x.at[number], out.at[3 - number])

    mesh = tpu_sc.VectorSubcoreMesh(
        core_axis_name="core", subcore_axis_name="subcore", num_cores=1, num_subcores=4
    )
    x = np.arange(32, dtype=np.int32).reshape(4, 8)
    kernel = pallas.kernel(body, out_type=jax.ShapeDtypeStruct(x.shape, x.dtype), mesh=mesh)
    np.testing.assert_array_equal(jax.jit(kernel)(x), x[::-1])


def test_subcores_that_wait_for_all_at_a_barrier() -> None:
    """Each copies to memory that they share, adds to it, and takes what others left."""
    import inspect

    import jax
    from jax import lax
    from jax.experimental import pallas
    from jax.experimental.pallas import tpu

    if "add" not in inspect.signature(tpu.async_copy).parameters:
        pytest.skip("this JAX has no copies that add")
    from jax.experimental.pallas import tpu_sc

    def body(x: Any, places: Any, out: Any) -> None:
        number = lax.axis_index("subcore")

        def inner(own: Any, local: Any, shared: Any, total: Any) -> None:
            tpu.sync_copy(places, local)

            def late(_: Any, carry: Any) -> Any:
                tpu.sync_copy(x.at[number], own)
                return carry

            lax.fori_loop(0, 1 + 20 * number, late, 0)
            tpu.sync_copy(own, shared.at[number])

            def fills() -> None:
                tpu.sync_copy(own, total)

            pallas.when(number == 0)(fills)

            tpu_sc.subcore_barrier()
            tpu.sync_copy(own, total.at[local], add=True)
            tpu_sc.subcore_barrier()
            tpu.sync_copy(shared.at[3 - number], out.at[number])
            tpu.sync_copy(total, out.at[4])

        row, rows = ((32,), np.int32), ((4, 32), np.int32)
        shared = tpu.VMEM_SHARED(*rows), tpu.VMEM_SHARED(*row)
        pallas.run_scoped(inner, tpu.VMEM(*row), tpu.VMEM(*row), *shared)

    mesh = tpu_sc.VectorSubcoreMesh(
        core_axis_name="core", subcore_axis_name="subcore", num_cores=1, num_subcores=4
    )
    x = np.arange(128, dtype=np.int32).reshape(4, 32)
    kernel = pallas.kernel(body, out_type=jax.ShapeDtypeStruct((5, 32), x.dtype), mesh=mesh)
    places = np.arange(32, dtype=np.int32)[::-1] // 2  # each twice
    result = jax.jit(kernel)(x, places)
    total = x[0].copy()
    np.add.at(total, places, x.sum(0))
    np.testing.assert_array_equal(result, [*x[::-1], total])


def test_a_copy_of_rows_that_memory_lists() -> None:
    """JAX's interpreter takes the number of the list's buffer for a row."""
    import jax
    from jax.experimental import pallas
    from jax.experimental.pallas import tpu

    if not hasattr(jax, "new_ref"):
        pytest.skip("JAX before 0.10 can't interpret kernels of SparseCores")
    from jax.experimental.pallas import tpu_sc

    x, listed = (
        np.arange(64, dtype=np.int32).reshape(8, 8),
        np.array([6, 1, 1, 4, 0, 7, 2, 5], np.int32),
    )

    def body(x: Any, listed: Any, gathered: Any, scattered: Any, ignored: Any) -> None:
        def inner(rows: Any, local: Any) -> None:
            tpu.sync_copy(listed, rows)
            tpu.sync_copy(x.at[rows], local)
            tpu.sync_copy(local, gathered)
            tpu.sync_copy(x, scattered)
            tpu.sync_copy(local, scattered.at[rows])
            tpu.sync_copy(x.at[tpu_sc.Indices(rows, ignored_value=4)], local)
            tpu.sync_copy(x.at[tpu_sc.Indices(rows, ignored_value=1)], local)
            tpu.sync_copy(local, ignored)
            tpu.sync_copy(local, ignored.at[tpu_sc.Indices(rows, ignored_value=0)])

        pallas.run_scoped(inner, tpu.VMEM((8,), np.int32), tpu.VMEM(x.shape, x.dtype))

    mesh = tpu_sc.VectorSubcoreMesh(
        core_axis_name="core", subcore_axis_name="subcore", num_cores=1, num_subcores=1
    )
    out = jax.ShapeDtypeStruct(x.shape, x.dtype)
    kernel = pallas.kernel(body, out_type=[out] * 3, mesh=mesh)
    gathered, scattered, ignored = jax.jit(kernel)(x, listed)
    np.testing.assert_array_equal(gathered, x[listed])
    np.testing.assert_array_equal(scattered, x)
    expected = x.copy()
    expected[[0, 3]] = x[listed][[0, 3]]
    np.testing.assert_array_equal(ignored, expected)


@pytest.mark.parametrize("is_within", [True, False])
def test_many_rows_that_memory_lists(*, is_within: bool) -> None:
    """They are one copy: JAX would look for races between thousands of them for minutes."""
    import jax

    x = np.arange(2048, dtype=np.int32)
    rows = np.random.default_rng(0).permutation(x)

    def body(rows: Any, gathered: Any) -> None:
        from jax.experimental import pallas
        from jax.experimental.pallas import tpu

        def inner(local: Any) -> None:
            tpu.sync_copy(rows, local)
            tpu.sync_copy(local.at[rows], gathered)

        pallas.run_scoped(inner, tpu.VMEM_SHARED(x.shape, x.dtype))

    kernel = on_a_subcore(body, jax.ShapeDtypeStruct(x.shape, x.dtype))
    if is_within:
        np.testing.assert_array_equal(kernel(rows), [rows[rows]])
        return
    rows[7] = 2048
    with pytest.raises(Exception, match="Out-of-bounds row 2048 of a buffer with 2048 rows"):
        jax.block_until_ready(kernel(rows))


def test_a_number_in_memory_of_another_subcore() -> None:
    import jax
    from jax import lax
    from jax.experimental import pallas
    from jax.experimental.pallas import tpu

    if not hasattr(jax, "new_ref"):
        pytest.skip("JAX before 0.10 can't interpret kernels of SparseCores")
    from jax.experimental.pallas import tpu_sc

    def body(out: Any) -> None:
        own = lax.axis_index("subcore")

        def inner(number: Any, local: Any) -> None:
            number[1] = 100 * own
            tpu_sc.subcore_barrier()
            before = tpu_sc.fetch_and_add(number.at[1], own + 1, subcore_id=(own + 1) % 4)
            tpu_sc.subcore_barrier()
            first = lax.iota(np.int32, 8) == 0
            local[...] = jax.numpy.where(first, before, number[1])
            tpu.sync_copy(local, out.at[own])

        pallas.run_scoped(inner, tpu.SMEM((2,), np.int32), tpu.VMEM((8,), np.int32))

    mesh = tpu_sc.VectorSubcoreMesh(
        core_axis_name="core", subcore_axis_name="subcore", num_cores=1, num_subcores=4
    )
    kernel = pallas.kernel(body, out_type=jax.ShapeDtypeStruct((4, 8), np.int32), mesh=mesh)
    result = np.asarray(jax.jit(kernel)())
    assert result[:, :2].tolist() == [[100, 4], [200, 101], [300, 202], [0, 303]]


def test_a_bound_of_the_grid_in_an_array() -> None:
    """JAX's interpreter takes only a scalar for a bound; Mosaic takes one number too."""
    import jax
    from jax.experimental import pallas
    from jax.experimental.pallas import tpu

    def body(_: Any, out: Any) -> None:
        out[0] = jax.numpy.where(pallas.program_id(0) == 0, 1, out[0] + 1)

    memory = pallas.BlockSpec(memory_space=tpu.SMEM)

    def count(n: Any) -> Any:
        grid = pallas.GridSpec(grid=(n,), in_specs=[memory], out_specs=memory)
        out = jax.ShapeDtypeStruct((1,), np.int32)
        return pallas.pallas_call(body, out_shape=out, grid_spec=grid)(n)

    assert jax.jit(count)(np.array([5], np.int32)).tolist() == [5]


@pytest.mark.parametrize("dtype", ["bfloat16", "int16"])
def test_packed_elements(dtype: str) -> None:
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas
    from jax.experimental.pallas import tpu

    if not hasattr(tpu, "pack_elementwise"):
        pytest.skip("this JAX packs no elements")
    wide = "float32" if dtype == "bfloat16" else "int32"

    def body(low: Any, high: Any, *out: Any) -> None:
        packed = tpu.pack_elementwise([low[...], high[...]], packed_dtype=jnp.dtype(dtype))
        for index, reference in enumerate(out):
            reference[...] = tpu.unpack_elementwise(
                packed,
                index=index,
                packed_dtype=jnp.dtype(dtype),
                unpacked_dtype=jnp.dtype(wide),
            )

    low = (np.arange(8 * 128).reshape(8, 128) % 200 - 100).astype(wide)
    out = [jax.ShapeDtypeStruct(low.shape, wide)] * 2
    first, second = jax.jit(pallas.pallas_call(body, out_shape=out))(low, -3 * low)
    np.testing.assert_array_equal(first, low)
    np.testing.assert_array_equal(second, np.asarray(-3 * low).astype(dtype).astype(wide))


def test_rounding_up_or_down_by_random_bits() -> None:
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas
    from jax.experimental.pallas import tpu

    if jax.__version_info__ < (0, 8):
        pytest.skip("this JAX rounds in other ways")

    def body(x: Any, bits: Any, out: Any) -> None:
        out[...] = tpu.stochastic_round(x[...], bits[...], target_dtype=jnp.bfloat16)

    x = np.full((8, 128), 1 + 2**-9, np.float32)  # a quarter of the way to the next number
    bits = np.random.default_rng(0).integers(0, 2**32, x.shape, np.uint32)
    f = pallas.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, "bfloat16"))
    result = np.asarray(jax.jit(f)(x, bits)).astype(np.float32)
    assert set(result.flat) == {1, 1 + 2**-7}
    assert 0.2 < np.mean(result > 1) < 0.3


def test_a_kernel_reads_its_semaphores() -> None:
    import jax
    from jax.experimental import pallas
    from jax.experimental.pallas import tpu

    def body(out: Any, semaphores: Any) -> None:
        for n in range(4):
            pallas.semaphore_signal(semaphores.at[n], n + 1)
        pallas.semaphore_wait(semaphores.at[2], 1)
        for n in range(4):
            out[n] = pallas.semaphore_read(semaphores.at[n])
        for n, left in enumerate([1, 2, 2, 4]):
            pallas.semaphore_wait(semaphores.at[n], left)

    f = pallas.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((4,), np.int32),
        out_specs=pallas.BlockSpec(memory_space=tpu.SMEM),
        scratch_shapes=[tpu.SemaphoreType.REGULAR((4,))],
    )
    np.testing.assert_array_equal(jax.jit(f)(), [1, 2, 2, 4])


def test_a_pipeline_as_one_operation() -> None:
    """JAX's interpreter knows it from 0.11.2 on, but no copies of a block of a block."""
    import jax
    from jax.experimental import pallas
    from jax.experimental.pallas import tpu

    if not hasattr(jax.config, "jax_use_emit_pipeline_primitive"):
        pytest.skip("JAX before 0.10.2 has no such operation")

    x = np.arange(32 * 128, dtype=np.float32).reshape(32, 128)

    def double(x: Any, out: Any) -> None:
        out[...] = x[...] * 2

    def by(rows: int, step: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        block = pallas.BlockSpec((rows, 128), lambda n: (n, 0))

        def pipeline(x: Any, out: Any) -> None:
            grid = (x.shape[0] // rows,)
            tpu.emit_pipeline(step, grid=grid, in_specs=[block], out_specs=[block])(x, out)

        return pipeline

    anywhere = pallas.BlockSpec(memory_space=pallas.ANY)
    out = jax.ShapeDtypeStruct(x.shape, x.dtype)
    for body in by(16, double), by(16, by(8, double)):
        f = pallas.pallas_call(body, out_shape=out, in_specs=[anywhere], out_specs=anywhere)
        np.testing.assert_array_equal(jax.jit(f)(x), 2 * x)
        with jax._src.config.use_emit_pipeline_primitive(True):
            np.testing.assert_array_equal(jax.jit(f)(x), 2 * x)


def test_a_pipeline_that_asks_for_its_number_of_steps() -> None:
    import jax
    from jax.experimental import pallas
    from jax.experimental.pallas import tpu

    if jax.__version_info__ < (0, 11, 2):
        pytest.skip("this JAX has no such operation, or a pipeline is traced as what it does")

    def step(x: Any, out: Any) -> None:
        out[...] = x[...] * pallas.num_programs(0)

    def body(x: Any, out: Any) -> None:
        block = pallas.BlockSpec((4, 128), lambda n: (n, 0))
        tpu.emit_pipeline(step, grid=(jax.numpy.int32(2),), in_specs=[block], out_specs=[block])(
            x, out
        )

    anywhere = pallas.BlockSpec(memory_space=pallas.ANY)
    out = jax.ShapeDtypeStruct(X.shape, X.dtype)
    f = pallas.pallas_call(body, out_shape=out, in_specs=[anywhere], out_specs=anywhere)
    with jax._src.config.use_emit_pipeline_primitive(False):
        np.testing.assert_array_equal(jax.jit(f)(X), 2 * X)
    with (
        jax._src.config.use_emit_pipeline_primitive(True),
        pytest.raises(Exception, match="num_programs in a pipeline"),
    ):
        jax.jit(f)(X)


def test_random_bits_of_a_tpus_own_generator(tpu_events: EventLog) -> None:
    """JAX's interpreter has zeros for them."""
    import jax
    from jax.experimental import pallas
    from jax.experimental.pallas import tpu

    def body(seed: Any, out: Any) -> None:
        tpu.prng_seed(seed[0], 7)

        def one(n: Any) -> None:
            out[n] = tpu.prng_random_bits((64, 128))

        pallas.loop(0, 2)(one)

    f = pallas.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((2, 64, 128), np.int32),
        in_specs=[pallas.BlockSpec(memory_space=tpu.SMEM)],
    )
    first, again, other = (np.asarray(jax.jit(f)(np.array([n], np.int32))) for n in (1, 1, -2))
    np.testing.assert_array_equal(first, again)
    each = np.concatenate([first, other]).astype(np.int64)
    assert len(np.unique(each)) > 0.99 * each.size
    assert np.abs(each.mean((1, 2))).max() < 2**31 / 32
    assert [event.rewrite for event in tpu_events.read().of("rewrite")] == [
        "random numbers of a TPU"
    ]
