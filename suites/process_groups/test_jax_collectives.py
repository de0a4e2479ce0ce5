"""JAX's collectives over the devices of several processes, in shard_map and as jit inserts them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding

from harness.model.topology import Topology
from harness.oracles import collectives as oracle
from suites.shared.comparison import check_numbers
from suites.shared.global_arrays import (
    Parts,
    Spec,
    mesh_of,
    on_each_device,
    on_ranks,
    parts,
    spread,
)
from suites.shared.jax_collectives import AXES, COLLECTIVES, Axes, groups_of, over
from suites.shared.values import ranks_of

pytestmark = [pytest.mark.lanes("virtual-*"), pytest.mark.upstream("jax-ml/jax#40830")]

# Without pmean, which has no meaning for the integers among the dtypes.
NAMES = tuple(name for name in COLLECTIVES if name != "pmean")


@pytest.mark.long
@pytest.mark.topologies("4@chip", "8@host", "2x4@chip", "2x4@slice")
def test_shard_map(topology: Topology, subtests: pytest.Subtests) -> None:
    """Each collective over all devices, within the rows of the mesh and across them.

    With two slices a row is a slice. All programs are on their way before a result is read.
    """
    total = topology.total
    inputs = ranks_of(total, (8, 3))

    def rank(_: int) -> dict[str, Parts]:
        mesh = mesh_of(2, total // 2)
        given = spread(np.concatenate(inputs), mesh, Spec(("x", "y")))
        results = {
            axes: on_each_device(_collectives(names), mesh, Spec(("x", "y")))(given)
            for axes, names in AXES.items()
        }
        return _named(results)

    answers = on_ranks(rank, topology)
    for axes, names in AXES.items():
        for name in NAMES:
            with subtests.test(collective=name, axes=axes):
                expected = COLLECTIVES[name].meaning(inputs, groups_of(names, total))
                check_numbers([[part] for part in answers[f"{name} {axes}"]], expected)


@pytest.mark.long
@pytest.mark.topologies("4@chip")
def test_dtypes(topology: Topology, subtests: pytest.Subtests) -> None:
    total = topology.total
    inputs = {dtype: ranks_of(total, (8, 3), dtype) for dtype in ("bfloat16", "int32", "uint8")}

    def rank(_: int) -> dict[str, Parts]:
        mesh = mesh_of(total)
        program = on_each_device(_collectives(("x",)), mesh, Spec("x"))
        return _named(
            {
                dtype: program(spread(np.concatenate(given), mesh, Spec("x")))
                for dtype, given in inputs.items()
            }
        )

    results = on_ranks(rank, topology)
    for dtype, given in inputs.items():
        for name in NAMES:
            with subtests.test(collective=name, dtype=dtype):
                got = [[part] for part in results[f"{name} {dtype}"]]
                check_numbers(got, COLLECTIVES[name].meaning(given, ()))


def _collectives(axes: Axes) -> Callable[[jax.Array], dict[str, jax.Array]]:
    """All collectives over those axes, of a device's part."""
    return lambda x: {name: over(name, axes)(x) for name in NAMES}


def _named(results: Mapping[str, Mapping[str, jax.Array]]) -> dict[str, Parts]:
    return {
        f"{name} {key}": parts(array)
        for key, arrays in results.items()
        for name, array in arrays.items()
    }


# A program over arrays that are sharded by the first spec: its value in JAX and in NumPy, and how
# its result is sharded. The partitioner has to insert the collective that the name says.
PARTITIONED: dict[str, tuple[Spec, Callable[[jax.Array], jax.Array], Spec]] = {
    "all_gather": (Spec("x"), lambda v: v, Spec()),
    "all_reduce": (Spec(None, "x"), lambda v: v @ v.T, Spec()),
    "reduce_scatter": (Spec(None, "x"), lambda v: v @ v.T, Spec("x")),
    "all_to_all": (Spec("x"), lambda v: v * 2, Spec(None, "x")),
    "collective_permute": (Spec("x"), lambda v: jnp.roll(v, 3, axis=0), Spec("x")),
    "transpose": (Spec("x"), lambda v: v.T, Spec("x")),
    "maximum": (Spec("x"), lambda v: v.max(0), Spec()),
    "sort": (Spec("x"), lambda v: jnp.sort(v, axis=0), Spec("x")),
    "cumulative": (Spec("x"), lambda v: jnp.cumsum(v, axis=0), Spec("x")),
    "uneven": (Spec("x"), lambda v: v[:13].sum(0), Spec()),
}


@pytest.mark.topologies("4@chip", "8@host", "2x4@slice")
def test_partitioned(topology: Topology, subtests: pytest.Subtests) -> None:
    """What jit makes of a whole program, beside the same program on one device of one process."""
    value = np.random.default_rng(3).integers(-600, 600, (16, 24)).astype(np.float32)

    def rank(_: int) -> dict[str, Parts]:
        mesh = mesh_of(topology.total)
        return {
            name: parts(
                jax.jit(function, out_shardings=NamedSharding(mesh, out))(
                    spread(value, mesh, given)
                )
            )
            for name, (given, function, out) in PARTITIONED.items()
        }

    results = on_ranks(rank, topology)
    meant = {
        "all_gather": value,
        "all_reduce": value @ value.T,
        "reduce_scatter": value @ value.T,
        "all_to_all": value * 2,
        "collective_permute": np.roll(value, 3, axis=0),
        "transpose": value.T,
        "maximum": value.max(0),
        "sort": np.sort(value, axis=0),
        "cumulative": np.cumsum(value, axis=0),
        "uneven": value[:13].sum(0),
    }
    for name, (_, _, out) in PARTITIONED.items():
        with subtests.test(program=name):
            expected = _split(meant[name], out, topology.total)
            check_numbers([[part] for part in results[name]], expected)


def _split(value: np.ndarray, spec: Spec, devices: int) -> list[np.ndarray]:
    """Each device's part of the value."""
    if "x" not in spec:
        return [value] * devices
    return np.split(value, devices, list(spec).index("x"))


@pytest.mark.topologies("4@chip", "2x4@slice")
def test_pallas_kernel(topology: Topology) -> None:
    """A Pallas kernel on each device's part, and a collective on what it makes."""
    inputs = ranks_of(topology.total, (8, 128))

    def rank(_: int) -> dict[str, Parts]:
        from jax.experimental import pallas as pl

        def kernel(x: jax.Array, out: jax.Array) -> None:
            out[...] = x[...] * 2 + 1

        def doubled(x: jax.Array) -> jax.Array:
            result = pl.pallas_call(kernel, jax.ShapeDtypeStruct(x.shape, x.dtype))(x)
            return lax.psum(result, "x")

        mesh = mesh_of(topology.total)
        program = on_each_device(doubled, mesh, Spec("x"))
        return {"sum": parts(program(spread(np.concatenate(inputs), mesh, Spec("x"))))}

    doubles = on_ranks(rank, topology)["sum"]
    expected = oracle.all_reduce([value * 2 + 1 for value in inputs], "sum")
    check_numbers([[part] for part in doubles], expected)
