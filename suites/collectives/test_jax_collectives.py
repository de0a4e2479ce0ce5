"""JAX's collectives in shard_map: numbers, gradients and their export, on one process's devices."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from inspect import signature
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax._src.lax import parallel
from jax.sharding import Mesh, NamedSharding
from packaging.version import Version

from harness.ir import parse
from harness.lanes.aot.case_compiler import CaseCompiler
from harness.model.topology import Target, Topology
from suites.collectives.checks import check_groups, check_reducer
from suites.collectives.compiled import SHAPE as COMPILED
from suites.collectives.compiled import check_exchange, must_send
from suites.collectives.exported import PLATFORMS, export, read, versions
from suites.shared.comparison import check_numbers
from suites.shared.global_arrays import Spec, mesh_of, on_each_device, parts, spread
from suites.shared.groups import layout
from suites.shared.jax_collectives import AXES, COLLECTIVES, groups_of, over
from suites.shared.jax_compiled import exchanges
from suites.shared.jax_releases import unreadable_before_0_4_30
from suites.shared.values import ranks_of

pytestmark = [
    pytest.mark.lanes("cpu", "virtual-*", "tpu"),
    pytest.mark.topologies("8"),
    pytest.mark.upstream("jax-ml/jax#40830"),
    unreadable_before_0_4_30,
]
named = pytest.mark.parametrize("name", COLLECTIVES)
written = pytest.mark.skipif(
    find_spec("flatbuffers") is None, reason="jax.export writes with flatbuffers, not installed"
)
ROWS = Spec(("x", "y"))
REFUSES = Version("0.11.1")  # to permute over axes in another order than the mesh's
SHAPE = (8, 8)  # of a device's part: what any number of devices divides

DTYPES = ("float32", "bfloat16", "int32", "uint8")


def _whole(inputs: Sequence[np.ndarray], mesh: Mesh) -> jax.Array:
    """Make the array whose parts, device by device, are the inputs."""
    return spread(np.concatenate(inputs), mesh, ROWS)


def _ranks(array: jax.Array) -> list[tuple[np.ndarray]]:
    """Return each device's part of the array, as the only output of a rank."""
    by_device = parts(array)
    return [(by_device[device],) for device in sorted(by_device)]


@named
@pytest.mark.topologies("8", "2x4")
def test_numbers(topology: Topology, subtests: pytest.Subtests, name: str) -> None:
    """Over both axes of a mesh and over each of them; with two slices a row is a slice."""
    mesh = mesh_of(2, topology.total // 2)
    for axes in AXES.values():
        groups = groups_of(axes, topology.total)
        for dtype in DTYPES:
            if name == "pmean" and dtype not in ("float32", "bfloat16"):
                continue
            inputs = ranks_of(topology.total, SHAPE, dtype)
            result = on_each_device(over(name, axes), mesh, ROWS)(_whole(inputs, mesh))
            with subtests.test(axes=axes, dtype=dtype):
                check_numbers(_ranks(result), COLLECTIVES[name].meaning(inputs, groups))


@named
@pytest.mark.lanes("virtual-*")
@pytest.mark.topologies(1)
def test_on_one_device(name: str) -> None:
    """What a machine with one device can be asked: the device alone exchanges with itself."""
    mesh, inputs = mesh_of(1), ranks_of(1, SHAPE)
    program = on_each_device(over(name, ("x",)), mesh, Spec("x"))
    result = program(spread(inputs[0], mesh, Spec("x")))
    check_numbers(_ranks(result), COLLECTIVES[name].meaning(inputs, ((0,),)))


GROUPED = [name for name, of in COLLECTIVES.items() if of.kind != "collective_permute"]


@pytest.mark.lanes("*-aot")
@pytest.mark.topologies("2xv6e:2x2", "2xh100:4")
@pytest.mark.parametrize("name", GROUPED)
def test_compiles(
    topology: Topology, xla_compiler: CaseCompiler, subtests: pytest.Subtests, name: str
) -> None:
    """Over slices or nodes, over the devices of each, and over all: what must be exchanged."""
    mesh = Mesh(np.array(xla_compiler.devices).reshape(2, -1), ("x", "y"))
    rows = NamedSharding(mesh, ROWS)
    whole = jax.ShapeDtypeStruct(
        (topology.total * COMPILED[0], COMPILED[1]), "float32", sharding=rows
    )
    for axes in AXES.values():
        groups = groups_of(axes, topology.total)
        program = xla_compiler.jax(on_each_device(over(name, axes), mesh, ROWS), whole).program
        with subtests.test(axes=axes):
            sent = must_send(COLLECTIVES[name].kind, groups, topology)
            check_exchange(program, groups, topology, sent)


@pytest.mark.skipif(
    not hasattr(parallel, "psum_start"), reason="this release of JAX has no collective in two parts"
)
@pytest.mark.parametrize("name", ["psum", "all_gather", "psum_scatter", "all_to_all", "ppermute"])
def test_started_and_done(topology: Topology, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """What is started and then waited for, in a program of its own, is what happens at once."""
    if name == "psum" and jax.__version_info__ >= (0, 11):
        pytest.skip("JAX starts a sum only where shard_map checks what varies, from 0.11 on")
    start = getattr(parallel, f"{name}_start")
    monkeypatch.setattr(lax, name, lambda *args, **of: start(*args, **of).done())
    mesh, inputs = mesh_of(2, topology.total // 2), ranks_of(topology.total, SHAPE)
    result = on_each_device(over(name, ("y",)), mesh, ROWS)(_whole(inputs, mesh))
    groups = groups_of(("y",), topology.total)
    check_numbers(_ranks(result), COLLECTIVES[name].meaning(inputs, groups))


@named
@pytest.mark.parametrize("groups", ["pairs", "strided"])
def test_index_groups(topology: Topology, name: str, groups: str) -> None:
    """Groups by index along one axis, which a permutation does not take; also backwards."""
    if COLLECTIVES[name].kind == "collective_permute":
        pytest.skip("a permutation has pairs instead")
    mesh, of, rows = mesh_of(topology.total), layout(groups, topology.total), Spec("x")
    inputs, pullback = ranks_of(topology.total, SHAPE), COLLECTIVES[name].pullback
    program = on_each_device(over(name, ("x",), of), mesh, rows)
    whole = spread(np.concatenate(inputs), mesh, rows)
    result = program(whole)
    check_numbers(_ranks(result), COLLECTIVES[name].meaning(inputs, of))
    if pullback is None:  # JAX has no rule
        return
    given = [8 * each for each in ranks_of(topology.total, parts(result)[0].shape)]
    (gradients,) = jax.vjp(program, whole)[1](spread(np.concatenate(given), mesh, rows))
    check_numbers(_ranks(gradients), pullback(given, of))


@named
@pytest.mark.upstream("jax-ml/jax#1981")
def test_axes_in_another_order(topology: Topology, name: str) -> None:
    """Over both axes, named in another order than the mesh has: as axis_index counts over them.

    JAX refuses to permute in that order since 0.11.1.
    """
    mesh, axes = mesh_of(2, topology.total // 2), ("y", "x")
    groups, inputs = groups_of(axes, topology.total), ranks_of(topology.total, SHAPE)
    program, whole = on_each_device(over(name, axes), mesh, ROWS), _whole(inputs, mesh)
    if COLLECTIVES[name].kind == "collective_permute" and Version(jax.__version__) >= REFUSES:
        with pytest.raises(RuntimeError, match="same order as the axis_names"):
            program(whole)
        return
    result = program(whole)
    check_numbers(_ranks(result), COLLECTIVES[name].meaning(inputs, groups))


@named
@pytest.mark.upstream("jax-ml/jax#28193")
def test_gradients(topology: Topology, subtests: pytest.Subtests, name: str) -> None:
    """What comes back for each input, of different gradients for each device's result."""
    pullback = COLLECTIVES[name].pullback
    if pullback is None:
        pytest.skip("JAX has no rule")
    mesh = mesh_of(2, topology.total // 2)
    for axes in AXES.values():
        groups = groups_of(axes, topology.total)
        inputs = ranks_of(topology.total, SHAPE)
        program = on_each_device(over(name, axes), mesh, ROWS)
        result, back = jax.vjp(program, _whole(inputs, mesh))
        shape = parts(result)[0].shape
        given = ranks_of(topology.total, shape, "float32")
        given = [8 * value for value in given]  # so that a mean of eight is exact
        (gradients,) = back(_whole(given, mesh))
        with subtests.test(axes=axes):
            check_numbers(_ranks(result), COLLECTIVES[name].meaning(inputs, groups))
            check_numbers(_ranks(gradients), pullback(given, groups))


@named
@written
def test_exported(topology: Topology, name: str) -> None:
    """Exported, written, read again and called: the same operation, groups and numbers."""
    mesh, axes = mesh_of(2, topology.total // 2), AXES["within"]
    from jax import export as exporting

    inputs, groups = ranks_of(topology.total, SHAPE), groups_of(axes, topology.total)
    whole = _whole(inputs, mesh)
    exported = export(on_each_device(over(name, axes), mesh, ROWS), whole)
    collective = COLLECTIVES[name]
    program = parse(exported.mlir_module()).only(collective.kind)
    if collective.kind != "collective_permute":
        check_groups(program, groups, topology.total)
    if collective.reducer:
        check_reducer(program, collective.reducer)
    again = exporting.deserialize(exported.serialize())
    check_numbers(_ranks(jax.jit(again.call)(whole)), collective.meaning(inputs, groups))


@written
@pytest.mark.lanes("cpu", "virtual-tpu", "tpu")  # the platforms that they were exported for
@pytest.mark.parametrize("version", versions())
def test_exported_by_another_version(
    xla_target: Target, topology: Topology, subtests: pytest.Subtests, version: str
) -> None:
    """What an older JAX has exported. It promises that for six months; no defect is known later."""
    from jax import export as exporting

    if Version(version) > Version(jax.__version__):
        pytest.skip(f"written by JAX {version}: a version promises to read older ones")
    if (platform := jax.devices()[0].platform) not in PLATFORMS:  # a plugin's own
        pytest.skip(f"exported for {' and '.join(PLATFORMS)}, not for {platform}")
    mesh, axes = mesh_of(2, topology.total // 2), AXES["within"]
    inputs, groups = ranks_of(topology.total, SHAPE), groups_of(axes, topology.total)
    whole = _whole(inputs, mesh)
    for name, artifact in read(version).items():
        with subtests.test(name=name):
            read_again = jax.jit(exporting.deserialize(bytearray(artifact)).call)
            compiled = read_again.lower(whole).compile()
            check_numbers(_ranks(compiled(whole)), COLLECTIVES[name].meaning(inputs, groups))
            kind = COLLECTIVES[name].kind.replace("_", "-")
            if xla_target.lane != "tpu":  # whose compiler may make others of it
                assert exchanges(compiled) == {kind}, "other exchanges than were exported"


def test_axis_index(topology: Topology) -> None:
    """Each device's place along each axis, and along both."""
    mesh = mesh_of(2, topology.total // 2)
    inputs = ranks_of(topology.total, (1, 1), "int32")
    whole = _whole(inputs, mesh)
    devices = np.arange(topology.total)
    row = topology.total // 2
    across = devices % row * 2 + devices // row
    for axis, expected in (
        ("x", devices // row),
        ("y", devices % row),
        (("x", "y"), devices),
        (("y", "x"), across),
    ):
        program = on_each_device(lambda x, axis=axis: x * 0 + lax.axis_index(axis), mesh, ROWS)
        numbers = [np.full((1, 1), place, np.int32) for place in expected]
        check_numbers(_ranks(program(whole)), numbers)


@pytest.mark.lanes("virtual-*", "tpu")  # XLA's CPU client has no ragged all-to-all
@pytest.mark.skipif(
    not hasattr(lax, "ragged_all_to_all")
    or "axis_name" not in signature(lax.ragged_all_to_all).parameters,
    reason="this release of JAX has none over the axis of a mesh",
)
def test_ragged_all_to_all(topology: Topology) -> None:
    """Each device sends rows of its own to each other one, of as many as the sizes say."""
    total, rows = topology.total, 16
    sizes = np.random.default_rng(3).integers(0, 3, (total, total)).astype(np.int32)
    starts = np.cumsum(sizes, 1, dtype=np.int32) - sizes
    places = np.cumsum(sizes, 0, dtype=np.int32) - sizes
    inputs = ranks_of(total, (rows, 2))
    expected = [np.full((rows, 2), -1, np.float32) for _ in range(total)]
    for (source, target), size in np.ndenumerate(sizes):
        out, into = starts[source, target], places[source, target]
        expected[target][into : into + size] = inputs[source][out : out + size]

    def program(x: jax.Array) -> Any:
        own = lax.axis_index("x")
        return lax.ragged_all_to_all(
            x,
            jax.numpy.full_like(x, -1),
            jax.numpy.asarray(starts)[own],
            jax.numpy.asarray(sizes)[own],
            jax.numpy.asarray(places)[own],
            jax.numpy.asarray(sizes)[:, own],
            axis_name="x",
        )

    mesh = mesh_of(total)
    result = on_each_device(program, mesh, Spec("x"))(
        spread(np.concatenate(inputs), mesh, Spec("x"))
    )
    check_numbers(_ranks(result), expected)


@pytest.mark.upstream("jax-ml/jax#19720")
@pytest.mark.parametrize("name", ["all_gather", "psum_scatter", "all_to_all"])
def test_last_dimension_by_a_negative_number(topology: Topology, name: str) -> None:
    """The dimension along which results are put together or divided, counted from the end."""
    world, rows = topology.total, Spec("x")
    mesh = mesh_of(world)
    inputs = ranks_of(world, SHAPE)
    program, expected = {
        "all_gather": (
            lambda x: lax.all_gather(x, "x", axis=-1, tiled=True),
            [np.concatenate(inputs, 1)] * world,
        ),
        "psum_scatter": (
            lambda x: lax.psum_scatter(x, "x", scatter_dimension=-1, tiled=True),
            np.split(np.sum(inputs, 0, dtype=np.float32), world, 1),
        ),
        "all_to_all": (
            lambda x: lax.all_to_all(x, "x", 0, -1, tiled=True),
            [np.concatenate([np.split(x, world)[n] for x in inputs], 1) for n in range(world)],
        ),
    }[name]
    result = on_each_device(program, mesh, rows)(spread(np.concatenate(inputs), mesh, rows))
    check_numbers(_ranks(result), expected)
