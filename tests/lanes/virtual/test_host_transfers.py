"""JAX's callbacks: what programs send to their host and receive from it."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from harness.job.ranks import run_ranks
from harness.lanes.events import EventLog
from harness.model.topology import Topology

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies(4),
    pytest.mark.deadline(120),
]

Seen = list[np.ndarray[Any, Any]]
Keep = Callable[..., Any]


def print_it(keep: Keep, x: Any) -> Any:
    import jax

    jax.debug.callback(keep, x)
    return x * 2


def call_pure(keep: Keep, x: Any) -> Any:
    import jax

    return jax.pure_callback(keep, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def call_io(keep: Keep, x: Any) -> Any:
    import jax
    from jax.experimental import io_callback

    return io_callback(keep, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def call_in_order(keep: Keep, x: Any) -> Any:
    import jax
    from jax.experimental import io_callback

    return io_callback(keep, jax.ShapeDtypeStruct(x.shape, x.dtype), x, ordered=True)


KINDS = {"debug": print_it, "pure": call_pure, "io": call_io, "ordered": call_in_order}


def keeper() -> tuple[Keep, Seen]:
    seen: Seen = []

    def keep(x: Any) -> Any:
        seen.append(np.array(x))
        return np.array(x) * 2

    return keep, seen


def sharded(x: Any) -> tuple[Any, Any]:
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()), ("d",))
    return mesh, jax.device_put(x, NamedSharding(mesh, PartitionSpec("d")))


def done(result: Any) -> Any:
    import jax

    array = np.asarray(result)
    jax.effects_barrier()
    return array


def test_transposed_operand() -> None:
    """The host reads a program's array row by row, also if only its layout was transposed."""
    import jax

    keep, seen = keeper()
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    result = done(jax.jit(lambda x: call_pure(keep, x.transpose(0, 2, 1)))(x))
    np.testing.assert_array_equal(seen[0], x.transpose(0, 2, 1))
    np.testing.assert_array_equal(result, 2 * x.transpose(0, 2, 1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "uint8", "complex64", "bfloat16", "int4"])
def test_one_device(tpu_events: EventLog, kind: str, dtype: str) -> None:
    import jax
    import jax.numpy as jnp

    keep, seen = keeper()
    x = np.arange(3).astype(jnp.dtype(dtype))
    same = jax.jit(lambda x: KINDS[kind](lambda v: keep(v).astype(v.dtype), x))
    np.testing.assert_array_equal(done(same(x)).astype(complex), (x * 2).astype(complex))
    np.testing.assert_array_equal(seen, [x])
    names = [event.rewrite for event in tpu_events.read().of("rewrite", by="jax")]
    back = [] if kind == "debug" else ["receive from the host"]
    assert names == ["send to the host", *back]


@pytest.mark.parametrize("kind", KINDS)
def test_sharded(kind: str) -> None:
    """The host sees the whole array, once."""
    import jax

    keep, seen = keeper()
    x = np.arange(8, dtype=np.float32)
    got = jax.jit(lambda x: KINDS[kind](keep, x))(sharded(x)[1])
    np.testing.assert_array_equal(done(got), x * 2)
    np.testing.assert_array_equal(seen, [x])


@pytest.mark.parametrize("kind", ["debug", "pure", "io"])  # JAX has no order over devices
def test_in_shard_map(kind: str) -> None:
    """The host sees the part of each device."""
    import jax
    from jax.sharding import PartitionSpec

    keep, seen = keeper()
    x = np.arange(8, dtype=np.float32)
    mesh, given = sharded(x)
    spec = PartitionSpec("d")
    part = jax.shard_map(
        lambda x: KINDS[kind](keep, x) + jax.lax.psum(x, "d"),
        mesh=mesh,
        in_specs=spec,
        out_specs=spec,
    )
    parts = x.reshape(4, 2)
    np.testing.assert_array_equal(done(jax.jit(part)(given)), (parts * 2 + parts.sum(0)).ravel())
    assert sorted(map(tuple, seen)) == sorted(map(tuple, parts))


@pytest.mark.parametrize("kind", KINDS)
def test_in_loops_and_branches(kind: str) -> None:
    import jax

    keep, seen = keeper()

    def step(x: Any, number: Any) -> Any:
        called = jax.lax.cond(number % 2 == 0, lambda v: KINDS[kind](keep, v), lambda v: v, x)
        return called, called.sum()

    def whole(x: Any) -> Any:
        return jax.lax.scan(step, x, np.arange(4))[0]

    x = np.arange(3, dtype=np.float32)
    np.testing.assert_array_equal(done(jax.jit(whole)(x)), x * 4)
    np.testing.assert_array_equal(seen, [x, x * 2])


def test_several_values_and_none() -> None:
    import jax

    given: list[Any] = []

    def both(*values: Any) -> Any:
        given.append([np.array(v) for v in values])
        return np.bool_(1), np.array([[2, 3]], np.int32)

    shapes = (jax.ShapeDtypeStruct((), np.bool_), jax.ShapeDtypeStruct((1, 2), np.int32))
    first, two = jax.jit(lambda: jax.pure_callback(both, shapes))()
    assert (float(first), np.asarray(two).tolist()) == (1, [[2, 3]])
    first, two = jax.jit(lambda x, y: jax.pure_callback(both, shapes, x, y))(
        np.ones(2), np.zeros(0)
    )
    assert (float(first), np.asarray(two).tolist()) == (1, [[2, 3]])
    assert [[v.tolist() for v in values] for values in given] == [[], [[1, 1], []]]


def test_an_error_on_the_host_is_the_execution_s() -> None:
    import jax

    def fails(x: Any) -> Any:
        raise ValueError(f"the cause {x.sum()}")

    shape = jax.ShapeDtypeStruct((2,), np.float32)
    with pytest.raises(Exception, match=r"the cause 2\.0"):
        np.asarray(jax.jit(lambda x: jax.pure_callback(fails, shape, x))(np.ones(2, np.float32)))


@pytest.mark.topologies("4@chip")
def test_each_process_is_asked_for_its_devices(topology: Topology) -> None:
    """A program that exchanges data runs elsewhere, and asks the process that submitted it."""

    def work(rank: int) -> Any:
        import jax
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        keep, seen = keeper()
        mesh, spec = Mesh(np.array(jax.devices()), ("d",)), PartitionSpec("d")
        full = np.arange(8, dtype=np.float32)
        x = jax.make_array_from_callback((8,), NamedSharding(mesh, spec), lambda at: full[at])

        def part(x: Any) -> Any:
            total = jax.lax.psum(call_pure(keep, x), "d")
            jax.debug.callback(keep, total)
            return total

        both = jax.shard_map(part, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
        (shard,) = jax.jit(both)(x).addressable_shards
        once: Seen = []
        jax.jit(lambda x: jax.debug.callback(lambda v: once.append(np.array(v)), x.sum()))(x)
        alone = jax.shard_map(
            functools.partial(print_it, keep), mesh=mesh, in_specs=spec, out_specs=spec
        )
        (doubled,) = jax.jit(alone)(x).addressable_shards  # exchanges nothing between processes
        jax.effects_barrier()
        # A callback without a result is called in its own time, where the program runs elsewhere.
        until = time.monotonic() + 20
        while (len(seen) < 3 or (rank == 0 and not once)) and time.monotonic() < until:
            time.sleep(0.01)
        assert np.asarray(doubled.data).tolist() == [4.0 * rank, 4.0 * rank + 2]
        values = sorted(v.tolist() for v in seen)
        return np.asarray(shard.data).tolist(), [*values, *(v.tolist() for v in once)]

    answers = run_ranks(work, topology)
    assert [total for total, _ in answers] == [[24.0, 32.0]] * 4
    own = [[2.0 * n, 2.0 * n + 1] for n in range(4)]
    parts: list[list[Any]] = [[part, part, [24.0, 32.0]] for part in own]
    parts[0].append(28.0)  # of what is not divided, the first process is asked
    assert [seen for _, seen in answers] == parts


@pytest.mark.topologies("2@chip")
def test_an_error_in_one_process_is_all_processes(topology: Topology) -> None:
    def work(rank: int) -> str:
        import jax
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        def fails(x: Any) -> Any:
            if rank == 1:
                raise ValueError("the cause")
            return np.array(x)

        mesh, spec = Mesh(np.array(jax.devices()), ("d",)), PartitionSpec("d")
        x = jax.make_array_from_callback((2,), NamedSharding(mesh, spec), lambda at: np.ones(1))
        both = jax.shard_map(
            lambda x: jax.lax.psum(call_pure(fails, x), "d"),
            mesh=mesh,
            in_specs=spec,
            out_specs=PartitionSpec(),
            check_vma=False,
        )
        try:
            jax.block_until_ready(jax.jit(both)(x))
        except Exception as error:
            return str(error)
        return ""

    assert all("the cause" in text for text in run_ranks(work, topology))


def test_torch_xla_has_no_host_side() -> None:
    """It executes what JAX lowers, and gives PJRT no functions for what is sent."""
    import jax
    import torch
    import torch_xla
    from torch_xla.core import xla_builder

    def f(x: Any) -> Any:
        jax.debug.print("x {}", x)
        return x + 1

    lowered = jax.jit(f).lower(np.ones(2, np.float32)).compiler_ir("hlo")
    module = lowered.as_serialized_hlo_module_proto()
    program = xla_builder.xla_computation_as_func(
        xla_builder.computation_from_module_proto("f", module)
    )
    why = "by channel 1, and the framework that executes it has no host side"
    with pytest.raises(RuntimeError, match=why):
        # torch_xla keeps the error that this raises, and would raise it at its next lock again
        program([torch.ones(2, device=torch_xla.device())])[0].cpu()
