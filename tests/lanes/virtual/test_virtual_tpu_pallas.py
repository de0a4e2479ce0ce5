"""Kernels replaced by JAX's interpretation of them, in programs that torch_xla and JAX submit."""

from __future__ import annotations

import os
import re
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness.job.ranks import run_ranks
from harness.lanes.events import EventLog
from harness.lanes.hlo import Module
from harness.lanes.virtual import kernel_random
from harness.lanes.virtual.custom_calls import replace_custom_calls
from harness.model.topology import Topology
from harness.session.fixtures import StartRuntime

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies(2),
    pytest.mark.measures_coverage,
]

X = np.arange(8 * 128, dtype=np.float32).reshape(8, 128) / 100


def kernel(body: Any, name: str, *, dtype: Any = np.float32, **options: Any) -> Any:
    """A Pallas kernel over whole float32[8, 128] operands."""
    import jax
    from jax.experimental import pallas

    return pallas.pallas_call(
        body, out_shape=jax.ShapeDtypeStruct((8, 128), dtype), name=name, **options
    )


def double(x: Any, out: Any) -> None:
    out[...] = x[...] + x[...]


def square(x: Any, out: Any) -> None:
    out[...] = x[...] * x[...]


def names(log: EventLog) -> list[str]:
    return [event.kernel for event in log.read().of("kernel", by="jax")]


def test_two_kernels_and_the_same_twice(tpu_events: EventLog) -> None:
    import jax

    first, second = kernel(double, "double"), kernel(square, "square")
    result = jax.jit(lambda x: first(second(first(x))) + 1)(X)
    np.testing.assert_allclose(result, 2 * (2 * X) ** 2 + 1, rtol=1e-6)
    assert sorted(names(tpu_events)) == ["double", "double", "square"]


@pytest.mark.parametrize("where", ["fori_loop", "cond", "scan", "while in cond"])
def test_kernels_inside_of_control_flow(tpu_events: EventLog, where: str) -> None:
    import jax
    from jax import lax

    f = kernel(double, "double")
    programs = {
        "fori_loop": lambda x: lax.fori_loop(0, 3, lambda _, v: f(v), x),
        "cond": lambda x: lax.cond(x[0, 1] > 0, lambda v: f(f(f(v))), lambda v: v, x),
        "scan": lambda x: lax.scan(lambda v, _: (f(v), None), x, length=3)[0],
        "while in cond": lambda x: lax.cond(
            x[0, 1] > 0, lambda v: lax.fori_loop(0, 3, lambda _, w: f(w), v), lambda v: v, x
        ),
    }
    np.testing.assert_array_equal(jax.jit(programs[where])(X), 8 * X)
    assert set(names(tpu_events)) == {"double"}


def test_booleans_in_and_out(tpu_events: EventLog) -> None:
    import jax
    import jax.numpy as jnp

    def body(x: Any, mask: Any, out: Any, negated: Any) -> None:
        out[...] = jnp.where(mask[...], x[...], 0)
        negated[...] = jnp.logical_not(mask[...])

    from jax.experimental import pallas

    shapes = [jax.ShapeDtypeStruct(X.shape, dtype) for dtype in (np.float32, np.bool_)]
    f = pallas.pallas_call(body, out_shape=shapes, name="masked")
    mask = X > 3
    out, negated = jax.jit(f)(X, mask)
    np.testing.assert_array_equal(out, np.where(mask, X, 0))
    np.testing.assert_array_equal(negated, ~mask)
    assert negated.dtype == bool
    assert names(tpu_events) == ["masked"]


def test_under_shard_map(tpu_events: EventLog, topology: Topology) -> None:
    import jax
    from jax.sharding import Mesh, PartitionSpec

    mesh = Mesh(np.array(jax.devices()), ("x",))
    spec = PartitionSpec("x")
    f = jax.jit(
        jax.shard_map(
            lambda x: jax.lax.psum(kernel(square, "square")(x), "x"),
            mesh=mesh,
            in_specs=spec,
            out_specs=PartitionSpec(),
            check_vma=False,
        )
    )
    x = np.concatenate([X * (n + 1) for n in range(topology.total)])
    factor = sum((n + 1) ** 2 for n in range(topology.total))
    np.testing.assert_allclose(f(x), factor * X**2, rtol=1e-6)
    assert names(tpu_events) == ["square"]


def test_from_torch_xla(tpu_events: EventLog, start_runtime: StartRuntime) -> None:
    start_runtime(spmd=True)
    import torch
    from torch_xla.experimental.custom_kernel import make_kernel_from_pallas

    f = make_kernel_from_pallas(
        kernel(double, "double"), lambda x: [(x.shape, x.dtype)]
    )  # its payload is known though torch_xla wraps it in a program of its own
    result = f(torch.from_numpy(X).to("xla")).cpu().numpy()
    np.testing.assert_array_equal(result, 2 * X)
    assert [event.kernel for event in tpu_events.read().of("kernel", by="torch_xla")] == ["double"]


def test_interpretation_creates_no_client_and_executes_nothing(tpu_events: EventLog) -> None:
    import jax
    from jax._src import xla_bridge

    x = jax.device_put(X)
    before = tpu_events.read()
    backends = set(xla_bridge.backends())
    compiled = jax.jit(kernel(double, "double")).lower(x).compile()
    after = tpu_events.read().after(before)
    assert len(after.of("kernel")) == len(after.of("compile")) == 1
    assert not after.of("client")
    assert not after.of("execute")
    assert set(xla_bridge.backends()) == backends
    np.testing.assert_array_equal(compiled(x), 2 * X)


def test_kernels_that_differ_only_in_the_sign_of_their_integers() -> None:
    """They have one payload."""
    import jax

    x = np.arange(8 * 128, dtype=np.int32).reshape(8, 128)
    for dtype in (np.int32, np.uint32, np.int32):
        result = jax.jit(kernel(double, "double", dtype=dtype))(x.astype(dtype))
        assert result.dtype == dtype
        np.testing.assert_array_equal(result, 2 * x)


def _in_a_job(topology: Topology, body: Any, **options: Any) -> list[Any]:
    """What each process has of the kernel's result, or why the kernel can't be interpreted."""

    def rank(_: int) -> Any:
        from suites.shared.global_arrays import Spec, mesh_of, on_each_device, spread

        mesh = mesh_of(topology.total)
        given = spread(np.concatenate([X, X + 100]), mesh, Spec("x"))
        try:
            result = on_each_device(kernel(body, "asking", **options), mesh, Spec("x"))(given)
        except Exception as error:  # of a class that each JAX has elsewhere
            return str(error)
        (shard,) = result.addressable_shards
        return np.asarray(shard.data)

    return run_ranks(rank, topology)


@pytest.mark.topologies("2@chip")
def test_a_kernel_with_random_numbers_in_a_job(topology: Topology) -> None:
    """Their numbers are those of one process, which NumPy computes."""

    def body(x: Any, out: Any) -> None:
        from jax import lax
        from jax.experimental.pallas import tpu

        def add(total: Any) -> Any:
            return total + (tpu.prng_random_bits(x.shape) >> 20).astype(np.float32)

        tpu.prng_seed(3, 4)
        total = lax.fori_loop(0, 2, lambda _, total: add(total), x[...])
        last = 1 + (x[0, 0] < 50).astype(np.int32)
        _, total = lax.while_loop(
            lambda carry: carry[0] < last, lambda carry: (carry[0] + 1, add(carry[1])), (0, total)
        )
        out[...] = lax.cond(x[0, 0] < 50, add, lambda total: total, total)

    def number_of_times(times: int) -> Any:
        memory, place = SimpleNamespace(), (0, 0)
        kernel_random._seed(memory, place, np.int32(3), np.int32(4))
        return sum(kernel_random._bits(X.shape, memory, place) >> 20 for _ in range(times))

    first, second = _in_a_job(topology, body)
    np.testing.assert_allclose(first, X + number_of_times(5), atol=0.01)
    np.testing.assert_allclose(second, X + 100 + number_of_times(3), atol=0.01)


@pytest.mark.topologies("2@chip")
def test_a_kernel_asks_which_device_it_is_on_in_a_job(topology: Topology) -> None:
    def body(x: Any, out: Any) -> None:
        from jax import lax

        out[...] = x[...] + 7 * lax.axis_index("x").astype(np.float32)

    first, second = _in_a_job(topology, body)
    np.testing.assert_array_equal(first, X)
    np.testing.assert_array_equal(second, X + 100 + np.float32(7))


@pytest.mark.topologies("2@chip")
def test_a_kernel_copies_to_another_process(topology: Topology) -> None:
    from jax.experimental.pallas import tpu

    def body(x: Any, out: Any, sent: Any, received: Any) -> None:
        from jax import lax
        from jax.experimental import pallas

        other = 1 - lax.axis_index("x")
        kind = pallas.DeviceIdType.LOGICAL
        copy = tpu.make_async_remote_copy(x, out, sent, received, other, kind)
        copy.start()
        copy.wait()

    semaphores = (tpu.SemaphoreType.DMA, tpu.SemaphoreType.DMA)
    first, second = _in_a_job(topology, body, scratch_shapes=semaphores)
    np.testing.assert_array_equal(first, X + 100)
    np.testing.assert_array_equal(second, X)


@pytest.mark.topologies("2@chip")
def test_a_kernel_that_signals_another_process_is_refused(topology: Topology) -> None:
    from jax.experimental.pallas import tpu

    def body(x: Any, out: Any, semaphore: Any) -> None:
        from jax import lax

        tpu.semaphore_signal(semaphore, device_id=1 - lax.axis_index("x"))
        tpu.semaphore_wait(semaphore)
        out[...] = x[...]

    for message in _in_a_job(topology, body, scratch_shapes=(tpu.SemaphoreType.REGULAR,)):
        assert "virtual TPU: Pallas kernel 'asking' can't be interpreted" in message
        assert "reaches other devices only by copies" in message


@pytest.mark.topologies("2@chip")
def test_a_kernel_that_prints_in_a_job_is_refused(topology: Topology) -> None:
    def body(x: Any, out: Any) -> None:
        from jax.experimental import pallas

        pallas.debug_print("here")
        out[...] = x[...]

    for message in _in_a_job(topology, body):
        assert "print them outside of the kernel" in message


def test_a_kernel_of_another_process_is_no_guess() -> None:
    import jax
    from jax._src import compiler
    from jax._src.lib import xla_client

    read, write = os.pipe()
    if (child := os.fork()) == 0:
        try:
            traced = jax.jit(kernel(double, "double")).trace(X)
            text = traced.lower(lowering_platforms=("tpu",)).as_text()
            os.write(write, text.encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        text = file.read()
    os.waitpid(child, 0)
    assert "tpu_custom_call" in text
    device = jax.devices()[0]
    message = r"JAX did not lower it in this process, so only its Mosaic payload is known \(\d+ by"
    with pytest.raises(Exception, match=message):
        device.client.compile_and_load(
            text, xla_client.DeviceList((device,)), compiler.get_compile_options(1, 1)
        )


def hlo(f: Any, *operands: Any, platform: str = "tpu") -> bytes:
    import jax

    lowered = jax.jit(f).trace(*operands).lower(lowering_platforms=(platform,))
    module: bytes = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
    return module


def test_replaced_modules_are_well_formed() -> None:
    first, second = kernel(double, "double"), kernel(square, "square")
    program = hlo(lambda x: first(second(first(x))), X)
    configs_asked: list[bytes] = []

    def replacement(config: bytes, shapes: object, divided: object) -> bytes:
        assert (shapes, divided) == ((X.shape,), False)
        configs_asked.append(config)
        return hlo(lambda x: x * len(configs_asked), X, platform="cpu")

    module = Module.FromString(program)
    configs = replace_custom_calls(module, "tpu_custom_call", replacement)
    replaced = module.SerializeToString()
    assert len(configs) == 3
    assert len(set(configs)) == len(configs_asked) == 2  # once for each different kernel
    ids = [i.id for computation in module.computations for i in computation.instructions]
    assert len(set(ids)) == len(ids)
    seen: set[int] = set()
    for computation in module.computations:  # callees first
        for instruction in computation.instructions:
            assert seen.issuperset(instruction.called_computation_ids)
        seen.add(computation.id)
    assert len({computation.name for computation in module.computations}) == len(seen)
    assert program != replaced
    assert not re.search(rb"tpu_custom_call", replaced)


def test_a_module_without_the_target_stays() -> None:
    program = hlo(lambda x: x + 1, X)

    def replacement(*_: object) -> bytes:
        pytest.fail("there is none to replace")

    module = Module.FromString(program)
    assert replace_custom_calls(module, "tpu_custom_call", replacement) == []
    assert module == Module.FromString(program)


def test_a_replacement_with_other_operands_is_refused() -> None:
    program = hlo(kernel(double, "double"), X)
    two = partial(hlo, lambda x, y: x + y, X, X, platform="cpu")
    with pytest.raises(ValueError, match="it takes 2 operands, the call gives 1"):
        replace_custom_calls(Module.FromString(program), "tpu_custom_call", lambda *_: two())
