"""Programs that two processes run together, each with a client of the plugin."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from harness.conformance.jax_programs.agreement import normal
from harness.conformance.jax_programs.compared_program import program
from harness.conformance.jax_programs.late import jax, jnp, lax, np

Pairs = Iterator[tuple[Any, Any]]
_JOB = "a job of several processes"  # a plugin may lack it


def spread(value: Any, spec: Sequence[str | None] = ("x",)) -> Any:
    """Divide an array over the devices of all processes, along the axis that is named ``x``."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))
    return jax.make_array_from_callback(value.shape, sharding, value.__getitem__)


def own(array: Any, expected: Any) -> tuple[Any, Any]:
    """Return the parts of an array that this process has, and what they should be."""
    assert array.shape == expected.shape, f"the shape is {array.shape}, not {expected.shape}"
    shards = array.addressable_shards
    return [each.data for each in shards], [expected[each.index] for each in shards]


@program(optional=_JOB)
def devices() -> Pairs:
    """See all devices of the job, and which of them this process addresses."""
    here, everywhere = jax.local_devices(), jax.devices()
    x = normal(3)
    yield jax.device_put(x, here[0]), x
    owners = sorted({each.process_index for each in everywhere})
    yield owners, list(range(jax.process_count()))
    yield {each.process_index for each in here} == {jax.process_index()}, True
    yield (
        [each.id for each in everywhere if each.process_index == jax.process_index()],
        [each.id for each in here],
    )
    yield len({each.id for each in everywhere}), len(everywhere)


@program(optional=_JOB)
def divided_array() -> Pairs:
    """Compute on arrays that are divided over the processes, and on whole ones."""
    count = jax.device_count()
    x, y = normal(2 * count, 3), normal(4, 2 * count, seed=1)
    yield own(jax.jit(lambda x: x * 2 + 1)(spread(x)), x * 2 + 1)
    yield own(spread(y, (None, "x")), y)
    whole = jax.device_put(spread(x), spread(x, ()).sharding)
    yield own(whole, x)
    yield own(jax.jit(jnp.sin)(spread(x, ())), np.sin(x))


@program(optional=_JOB)
def divided_operators() -> Pairs:
    """Sum, multiply, transpose and sort arrays whose dimension is divided over the processes."""
    count = jax.device_count()
    x, y = normal(2 * count, 4), normal(2 * count, 3, seed=1)
    wide = x.astype("float64")
    yield own(jax.jit(lambda x: x.sum(0))(spread(x)), wide.sum(0))
    yield own(jax.jit(lambda x: x.max())(spread(x)), x.max())
    yield own(jax.jit(lambda x, y: x.T @ y)(spread(x), spread(y)), wide.T @ y)
    yield own(jax.jit(lambda x: x.T)(spread(x)), x.T)
    yield own(jax.jit(lambda x: jnp.sort(x, 0))(spread(x)), np.sort(x, 0))
    yield own(jax.jit(lambda x: x[::-1])(spread(x)), x[::-1])


@program(optional=_JOB)
def collectives() -> Pairs:
    """Exchange parts by each collective, over all devices of the job."""
    count = jax.device_count()
    x = normal(count, count, 2)
    parts = [x[i] for i in range(count)]
    following = [(i, (i + 1) % count) for i in range(count)]
    index = np.arange(count, dtype="int32")
    cases: list[tuple[Callable[[Any], Any], Any]] = [
        (lambda p: lax.psum(p, "x"), [x.astype("float64").sum(0)] * count),
        (lambda p: lax.pmax(p, "x"), [x.max(0)] * count),
        (lambda p: lax.ppermute(p, "x", following), [parts[i - 1] for i in range(count)]),
        (lambda p: lax.all_gather(p, "x")[:, 0], [x[:, 0]] * count),
        (lambda p: lax.all_to_all(p, "x", 0, 0, tiled=True), [x[:, i] for i in range(count)]),
        (
            lambda p: lax.psum_scatter(p, "x", tiled=True),
            [x.astype("float64").sum(0)[i : i + 1] for i in range(count)],
        ),
        (lambda p: p * 0 + lax.axis_index("x"), [x[0] * 0 + i for i in index]),
    ]
    divided = spread(x)
    spec = jax.sharding.PartitionSpec("x")
    shard_map = getattr(jax, "shard_map", None) or jax.experimental.shard_map.shard_map
    for function, expected in cases:
        each = shard_map(
            lambda p, function=function: function(p[0])[None],
            mesh=divided.sharding.mesh,
            in_specs=(spec,),
            out_specs=spec,
        )
        yield own(jax.jit(each)(divided), np.stack(expected))


@program(optional=_JOB)
def training_step() -> Pairs:
    """Take a step of gradient descent on a batch that is divided over the processes."""
    count = jax.device_count()
    w, x, y = normal(3, 2), normal(2 * count, 3, seed=1), normal(2 * count, 2, seed=2)

    def loss(w: Any, x: Any, y: Any) -> Any:
        return ((x @ w - y) ** 2).mean()

    step = jax.jit(lambda w, x, y: w - jax.grad(loss)(w, x, y) / 8, donate_argnums=0)
    wide = w.astype("float64")
    gradient = x.T.astype("float64") @ (x @ wide - y) * (2 / y.size)
    yield own(step(spread(w, ()), spread(x), spread(y)), wide - gradient / 8)


@program(optional=_JOB)
def between_processes() -> Pairs:
    """Bring values from one process to all, from all to all, and wait for each other."""
    from jax.experimental import multihost_utils

    number, count = jax.process_index(), jax.process_count()
    mine = normal(3, seed=number)
    yield jax.device_put(mine), mine
    yield multihost_utils.broadcast_one_to_all(mine), normal(3)
    every = np.stack([normal(3, seed=i) for i in range(count)])
    yield multihost_utils.process_allgather(mine), every
    multihost_utils.sync_global_devices("the end")
