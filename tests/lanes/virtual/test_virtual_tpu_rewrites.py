"""What XLA's CPU compiler lacks and the virtual TPU runs, with NumPy as oracle."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from harness.lanes.events import EventLog
from harness.model.topology import Topology

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies(4),
    pytest.mark.measures_coverage,
]

REDUCERS = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
# SIZES[i][j] rows go from device i to device j.
SIZES = np.array([[1, 2, 0, 3], [2, 1, 1, 0], [0, 3, 2, 1], [1, 0, 2, 2]], np.int32)


def rewritten(log: EventLog) -> list[str]:
    return [event.rewrite for event in log.read().of("rewrite", by="jax")]


@pytest.mark.parametrize("dtype", ["int32", "uint8", "int16"])
@pytest.mark.parametrize("reducer", REDUCERS)
def test_bitwise_reduction_over_devices(
    tpu_events: EventLog, topology: Topology, reducer: str, dtype: str
) -> None:
    """The SPMD partitioner makes the all-reduce, after the program has been rewritten."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    limits = np.iinfo(dtype)
    x = np.random.default_rng(0).integers(
        limits.min, limits.max, (topology.total, 3), dtype, endpoint=True
    )
    over = getattr(jax.lax, f"bitwise_{reducer}")
    start = x[1, 1]  # not the identity
    f = jax.jit(lambda v: jax.lax.reduce(v, start, over, (0,)))
    got = f(jax.device_put(x, NamedSharding(all_devices(), PartitionSpec("x"))))
    want = REDUCERS[reducer](REDUCERS[reducer].reduce(x, 0), start)
    np.testing.assert_array_equal(got, want)
    assert rewritten(tpu_events) == [f"reduce {reducer}"]


def all_devices() -> Any:
    import jax

    return jax.sharding.Mesh(np.array(jax.devices()), ("x",))


def exchange_rows(mesh: Any, shape: tuple[int, ...], times: int) -> None:
    """Send rows of ``shape`` between the devices of ``mesh``, and check what has come."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    spec, all_sizes = PartitionSpec("x"), SIZES * times
    starts = np.cumsum(all_sizes, 1, dtype=np.int32) - all_sizes
    places = np.cumsum(all_sizes, 0, dtype=np.int32) - all_sizes
    given = np.arange(24 * times * int(np.prod(shape)), dtype=np.float32)
    given = given.reshape(4, 6 * times, *shape)
    output = np.full((4, 8 * times, *shape), -1, np.float32)

    def exchange(rows: Any, out: Any, *numbers: Any) -> Any:
        return jax.lax.ragged_all_to_all(rows[0], out[0], *(t[0] for t in numbers), axis_name="x")

    f = jax.shard_map(exchange, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    arguments = (given, output, starts, all_sizes, places, all_sizes.T)
    got = np.asarray(jax.jit(f)(*jax.device_put(arguments, NamedSharding(mesh, spec))))
    want = output.copy()
    for source, target in np.ndindex(4, 4):
        size, start = all_sizes[source, target], starts[source, target]
        place = places[source, target]
        want[target, place : place + size] = given[source, start : start + size]
    np.testing.assert_array_equal(got.reshape(want.shape), want)


@pytest.mark.parametrize("times", [1, 30], ids=["few", "many"])
@pytest.mark.parametrize("shape", [(), (2,)])
def test_ragged_all_to_all(tpu_events: EventLog, shape: tuple[int, ...], times: int) -> None:
    """Of few rows, and of more than are exchanged at once."""
    exchange_rows(all_devices(), shape, times)
    assert rewritten(tpu_events) == ["ragged-all-to-all"]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("jax_numpy_rank_promotion", "raise"),
        ("jax_numpy_dtype_promotion", "strict"),
    ],
)
def test_the_users_configuration_is_for_their_programs(option: str, value: object) -> None:
    """The Python half traces functions of its own, which JAX's options must not break."""
    import jax

    jax.config.update(option, value)
    exchange_rows(all_devices(), (2,), 1)


def test_the_mesh_in_use_is_for_the_users_programs() -> None:
    import jax

    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(mesh):
        exchange_rows(mesh, (2,), 1)


def test_ragged_dot(tpu_events: EventLog) -> None:
    import jax

    random = np.random.default_rng(0)
    lhs, rhs = (random.random(s, np.float32) for s in ((8, 4), (3, 4, 5)))
    got = jax.jit(jax.lax.ragged_dot)(lhs, rhs, np.array([2, 0, 6], np.int32))
    want = np.concatenate([lhs[:2] @ rhs[0], lhs[2:] @ rhs[2]])
    np.testing.assert_allclose(got, want, rtol=1e-5)
    assert rewritten(tpu_events) == ["ragged-dot"]


def test_what_the_compiler_has_is_not_rewritten(tpu_events: EventLog) -> None:
    import jax

    f = jax.jit(lambda v: jax.lax.reduce(v, np.int32(0), jax.lax.bitwise_or, (0,)))
    assert f(np.array([1, 6, 8], np.int32)) == 15
    assert rewritten(tpu_events) == []


@pytest.mark.parametrize("dtype", ["float32", "int8", "bool"])
def test_an_allocated_buffer(tpu_events: EventLog, dtype: str) -> None:
    """What is written is there, and what is not is NaN or the largest number."""
    import jax

    shape = jax.ShapeDtypeStruct((4,), np.dtype(dtype))
    allocate = jax.ffi.ffi_call("AllocateBuffer", shape, custom_call_api_version=1)
    f = jax.jit(lambda x: allocate().at[1].set(x * 1))
    rest = {"float32": np.nan, "int8": 127, "bool": True}[dtype]
    want = np.array([rest, 0, rest, rest], dtype)
    np.testing.assert_array_equal(f(np.zeros((), dtype)), want)
    assert rewritten(tpu_events) == ["allocation of a buffer"]


# What JAX 0.12 writes into the call that starts a collective over all four devices.
STARTED: dict[str, dict[str, Any]] = {
    "all-gather": {"all_gather_dimension": 0, "use_global_device_ids": True},
    "all-to-all": {"split_dimension": 0, "concat_dimension": 0, "split_count": 4},
    "all-to-all into columns": {"split_dimension": 0, "concat_dimension": 1, "split_count": 4},
    "collective-permute": {"permutation": [[0, 1], [1, 2], [2, 3], [3, 0]]},
}


@pytest.mark.parametrize("name", STARTED)
def test_a_collective_that_a_call_starts(tpu_events: EventLog, name: str) -> None:
    """As from JAX 0.12 on, whose lowering is written here for the JAX that there is."""
    import jax
    from jax._src.interpreters import mlir
    from jax.sharding import PartitionSpec

    groups = {} if "permutation" in STARTED[name] else {"replica_groups": [[0, 1, 2, 3]]}
    attributes = {"async_collective_config": json.dumps(STARTED[name] | groups | {"channel_id": 1})}
    own = jax.extend.core.Primitive("started")
    shape = {"all-gather": (16, 2), "all-to-all into columns": (1, 8)}.get(name, (4, 2))
    target = name.split(maxsplit=1)[0]
    own.def_abstract_eval(lambda x: x.update(shape=shape))

    def lower(context: Any, operand: Any) -> Any:
        results = [mlir.aval_to_ir_type(context.avals_out[0])]
        more = {"mhlo.frontend_attributes": mlir.ir_attribute(attributes)}
        start = mlir.custom_call(
            f"{target}-start", result_types=results, operands=[operand], extra_attributes=more
        )
        return mlir.custom_call(
            f"{target}-done", result_types=results, operands=start.results
        ).results

    mlir.register_lowering(own, lower)
    spec, mesh = PartitionSpec("x"), all_devices()
    mapped = jax.shard_map(own.bind, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    x = np.arange(32, dtype=np.float32).reshape(16, 2)
    meaning = {
        "all-gather": np.tile(x, (4, 1)),
        "all-to-all": x.reshape(4, 4, 2).swapaxes(0, 1).reshape(16, 2),
        "all-to-all into columns": x.reshape(4, 4, 2).swapaxes(0, 1).reshape(4, 8),
        "collective-permute": np.roll(x, 4, 0),
    }
    np.testing.assert_array_equal(jax.jit(mapped)(x), meaning[name])
    assert rewritten(tpu_events) == ["asynchronous collective"]
