"""JAX's specs and shardings as values: compared, hashed, pickled, joined, changed and refused.

The expected answers are those of Python's tuples and sets, and indices that NumPy computes.
"""

from __future__ import annotations

import operator
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from suites.shared.global_arrays import mesh_of
from suites.shared.jax_releases import explicit, needs_explicit_axes, since_0_5, until_0_8
from suites.spmd_specs.jax_layouts import part
from suites.spmd_specs.sharding_values import check_values

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("8"),
    pytest.mark.upstream("jax-ml/jax#26946"),
    since_0_5,
]
Spec = PartitionSpec
SPECS = [
    (),
    (None,),
    ("x",),
    ("x", None),
    ("y", "x"),
    (("x", "y"), None),
    (("y", "x"), None),
    (None, ("x", "y")),
]
needs_reduced = pytest.mark.skipif(
    not hasattr(PartitionSpec("x"), "reduced"),
    reason="a spec of this release of JAX says nothing of sums",
)


def from_text(spec: PartitionSpec) -> Any:
    """Return the spec that the text of a spec is in Python."""
    text = repr(spec).replace(", unreduced_kind=sum", "")
    return eval(text, {"PartitionSpec": Spec, "P": Spec})  # noqa: S307, of this process


def test_specs(subtests: pytest.Subtests) -> None:
    """A spec is a sequence of entries; an axis alone is the same entry as a tuple of that axis."""
    mesh = mesh_of(2, 4)
    check_values(lambda entries: Spec(*entries), SPECS)
    for entries in SPECS:
        spec = Spec(*entries)
        with subtests.test(entries=entries):
            assert (len(spec), tuple(spec)) == (len(entries), entries)
            assert from_text(spec) == spec
            assert [spec[n] for n in range(len(entries))] == list(entries)
            assert tuple(spec[1:]) == entries[1:]
            assert tuple(spec + Spec("z", None)) == (*entries, "z", None)
            assert tuple(operator.add(spec, ("z",))) == (*entries, "z")
            assert tuple(operator.add(("z", None), spec)) == ("z", None, *entries)
            for entry in set(entries) - {None}:
                assert spec.index(entry) == entries.index(entry)
                assert spec.count(entry) == entries.count(entry)
            assert spec.count("z") == 0
        at = NamedSharding(mesh, spec)
        assert tuple(jax.device_put(np.zeros((8, 8)), at).sharding.spec) == entries
    with subtests.test("spec and not spec"):
        assert Spec("x") != ["x"]
        with pytest.raises((NotImplementedError, TypeError)):
            operator.add(Spec("x"), ["y"])
        with pytest.raises((NotImplementedError, TypeError)):
            operator.add(["y"], Spec("x"))


def test_entries_that_divide_nothing() -> None:
    """They are found and counted as other entries are."""
    mesh = mesh_of(2, 4)
    for entries in SPECS:
        spec = NamedSharding(mesh, Spec(*entries)).spec
        assert spec.count(None) == entries.count(None)
        if None in entries:
            assert spec.index(None) == entries.index(None)


@needs_reduced
@needs_explicit_axes
def test_specs_of_sums(subtests: pytest.Subtests) -> None:
    """Axes over which parts still have to be added, or were added, are a part of a spec."""
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("x", "y", "z"))
    kinds: list[dict[str, set[str]]] = [{}, {"unreduced": {"y"}}, {"reduced": {"y"}}]
    kinds += [{"unreduced": {"y", "z"}}, {"unreduced": {"y"}, "reduced": {"z"}}]
    check_values(lambda of: Spec("x", None, **of), kinds)
    for of in kinds:
        spec = Spec("x", None, **of)
        with subtests.test(of=of):
            assert (spec.unreduced, spec.reduced) == tuple(
                frozenset(of.get(kind, ())) for kind in ("unreduced", "reduced")
            )
            assert NamedSharding(explicit(mesh), spec).spec == spec
            assert from_text(spec) == spec
            assert spec + Spec("w", **of) == Spec("x", None, "w", **of)
            assert Spec("w", **of) + spec == Spec("w", "x", None, **of)
            assert Spec(unreduced={"v"}) + Spec(unreduced={"w"}) == Spec(unreduced={"v", "w"})
            assert Spec(reduced={"v"}) + Spec(reduced={"w"}) == Spec(reduced={"v", "w"})
    for of in ({"unreduced": {"y"}}, {"reduced": {"y"}}):
        with subtests.test("no tuple", **of):
            for pair in ((Spec("x", **of), ("z",)), (("z",), Spec("x", **of))):
                with pytest.raises(TypeError):
                    operator.add(*pair)
            with pytest.raises((TypeError, ValueError)):
                Spec("x", **dict.fromkeys(of, "y"))
            with pytest.raises(ValueError):
                Spec("y", **of)


def test_named_shardings(subtests: pytest.Subtests) -> None:
    mesh, across = mesh_of(2, 4), Mesh(mesh_of(2, 4).devices[:, ::-1], ("x", "y"))
    arguments: list[tuple[Mesh, Any, str | None]] = [(mesh, spec, None) for spec in SPECS]
    arguments += [(across, ("x",), None), (mesh_of(4, 2), ("x",), None)]
    arguments += [(mesh, ("x",), kind) for kind in ("pinned_host", "unpinned_host")]
    check_values(lambda of: NamedSharding(of[0], Spec(*of[1]), memory_kind=of[2]), arguments)
    sizes = {"x": 2, "y": 4}
    for entries in SPECS:
        at = NamedSharding(mesh, Spec(*entries))
        with subtests.test(entries=entries):
            assert (at.num_devices, at.memory_kind in (None, "device")) == (8, True)
            assert at.device_set == at.addressable_devices == set(jax.devices())
            assert at.is_fully_addressable
            assert at.is_fully_replicated == (set(entries) <= {None})
            moved = at.with_memory_kind("pinned_host")
            assert (moved.memory_kind, moved.spec, moved.mesh) == ("pinned_host", at.spec, mesh)
            shape = (8, 16)[: max(1, len(entries))]
            numbers = np.arange(np.prod(shape)).reshape(shape)
            indices = at.devices_indices_map(shape)
            for place, device in np.ndenumerate(mesh.devices):
                own = part(numbers, entries, dict(zip("xy", place, strict=True)), sizes)
                np.testing.assert_array_equal(numbers[indices[device]], own)
                assert at.shard_shape(shape) == own.shape
            assert at.addressable_devices_indices_map(shape) == indices
    with subtests.test("axes of one device divide nothing"):
        narrow = mesh_of(8, 1)
        divided = {axis: NamedSharding(narrow, Spec(axis)) for axis in "xy"}
        assert (divided["x"].is_fully_replicated, divided["y"].is_fully_replicated) == (False, True)
        assert divided["y"].is_equivalent_to(NamedSharding(narrow, Spec()), 1)
        assert not divided["y"].is_equivalent_to(divided["x"], 1)
        alone = Mesh(np.array(jax.devices()[3:4]), ("x",))
        assert NamedSharding(alone, Spec("x")).is_fully_replicated
    with subtests.test("equivalent is not equal"):
        short, long = (NamedSharding(mesh, Spec(*entries)) for entries in (("x",), ("x", None)))
        assert short != long
        assert short.is_equivalent_to(long, 2)
        assert not short.is_equivalent_to(NamedSharding(mesh, Spec(None, "x")), 2)
        assert not short.is_equivalent_to(short.with_memory_kind("pinned_host"), 2)


def test_single_device_shardings() -> None:
    first, last = jax.devices()[0], jax.devices()[-1]
    arguments = [(first, None), *((last, kind) for kind in (None, "pinned_host", "unpinned_host"))]
    check_values(lambda of: SingleDeviceSharding(of[0], memory_kind=of[1]), arguments)
    for device, kind in arguments:
        at = SingleDeviceSharding(device, memory_kind=kind)
        assert (at.device_set, at.num_devices) == ({device}, 1)
        assert at.memory_kind == kind or (kind is None and at.memory_kind == "device")
        assert at.is_fully_addressable
        assert at.is_fully_replicated
        assert at.devices_indices_map((4, 2)) == {device: (slice(None), slice(None))}
        assert at.shard_shape((4, 2)) == (4, 2)
        assert at.with_memory_kind("unpinned_host").memory_kind == "unpinned_host"
        assert at.with_memory_kind("unpinned_host").device_set == {device}
        alone = NamedSharding(Mesh(np.array([device]), ("x",)), Spec("x"), memory_kind=kind)
        assert at != alone
        assert at.is_equivalent_to(alone, 2)


@until_0_8
@pytest.mark.parametrize("whole_rank", [True, False])
def test_shardings_of_maps(whole_rank: bool, subtests: pytest.Subtests) -> None:
    """Each of a map's devices has a row, or a column, or the whole; of JAX 0.5 in its dimension."""
    if not hasattr(jax.config, "jax_pmap_no_rank_reduction"):
        pytest.skip("this release of JAX has no choice")
    jax.config.update("jax_pmap_no_rank_reduction", whole_rank)
    make, devices = jax.sharding.PmapSharding.default, jax.devices()
    arguments: list[dict[str, Any]] = [
        *({"shape": (8, 3)}, {"shape": (8,)}, {"shape": (3, 8), "sharded_dim": 1}),
        *({"shape": (3, 4), "devices": devices[n : n + 3]} for n in (0, 4)),
        {"shape": (3, 4), "devices": devices[2::-1]},
        *({"shape": (3, 4), "sharded_dim": None, "devices": devices[:n]} for n in (2, 3)),
    ]
    check_values(lambda of: make(**of), arguments)
    for of in arguments:
        at, shape, dimension = make(**of), of["shape"], of.get("sharded_dim", 0)
        own = of.get("devices", devices)
        numbers = np.arange(np.prod(shape)).reshape(shape)
        with subtests.test(of=str(of)):
            assert (at.num_devices, at.device_set) == (len(own), set(own))
            assert at.is_fully_replicated == (dimension is None)
            assert at.is_fully_addressable
            assert at.memory_kind in (None, "device")
            array = jax.device_put(numbers, at)
            np.testing.assert_array_equal(array, numbers)
            assert [shard.device for shard in array.addressable_shards] == own
            for number, shard in enumerate(array.addressable_shards):
                part_of = numbers
                if dimension is not None:
                    part_of = np.take(numbers, [number] if whole_rank else number, dimension)
                np.testing.assert_array_equal(shard.data, part_of)
                np.testing.assert_array_equal(numbers[shard.index], part_of)
                assert at.shard_shape(shape) == part_of.shape
                assert shard.replica_id == (number if dimension is None else 0)
    first = make((8, 3))
    with subtests.test("devices of another shape"):
        kind = type(first)
        assert kind(first.devices.reshape(2, 4), first.sharding_spec) != first
        assert first != NamedSharding(mesh_of(8), Spec("x"))
    with subtests.test("not for jit"), pytest.raises(ValueError, match="not allowed"):
        jax.jit(lambda v: v, in_shardings=first)


@needs_explicit_axes
def test_abstract_meshes(subtests: pytest.Subtests) -> None:
    """A sharding over axes without devices knows its parts' shapes, and says so of the rest."""
    mesh = mesh_of(2, 4).abstract_mesh
    at = NamedSharding(mesh, Spec(None, ("y", "x")))
    assert at == NamedSharding(mesh_of(2, 4).abstract_mesh, at.spec)
    assert at != NamedSharding(mesh_of(2, 4), at.spec)
    assert (at.num_devices, at.is_fully_replicated) == (8, False)
    assert at.shard_shape((3, 16)) == (3, 2)
    for name in ("device_set", "addressable_devices", "is_fully_addressable"):
        with subtests.test(name=name), pytest.raises((ValueError, AttributeError)):
            getattr(at, name)


def test_wrong_specs_are_refused(subtests: pytest.Subtests) -> None:
    mesh = mesh_of(2, 4)
    wrong: dict[str, list[Any]] = {
        "duplicate": [("x", "x"), (("x", "y"), "y"), (("y", "y"),), (None, ("x",), "x")],
        "not found": [("z",), (None, ("x", "z"))],
    }
    for match, specs in wrong.items():
        for entries in specs:
            with subtests.test(entries=entries), pytest.raises(Exception, match=match) as refused:
                NamedSharding(mesh, Spec(*entries))
            assert type(refused.value).__name__ in ("DuplicateSpecError", "ValueError")
    value = np.zeros((8, 8), np.float32)
    for spec, array in ((Spec("x", None, None), value), (Spec("x"), value[0, 0])):
        at = NamedSharding(mesh, spec)
        with subtests.test(spec=spec):
            with pytest.raises(ValueError, match="rank"):
                jax.device_put(array, at)
            with pytest.raises(ValueError, match="rank"):
                jax.jit(lambda v: v, out_shardings=at)(array)
    free = NamedSharding(mesh, Spec(Spec.UNCONSTRAINED, "x"))
    with subtests.test("unconstrained"), pytest.raises(ValueError):
        jax.jit(lambda v: v, in_shardings=free)(value)


@needs_explicit_axes
def test_specs_of_explicit_axes_are_checked(subtests: pytest.Subtests) -> None:
    auto, mesh = mesh_of(2, 4), explicit(mesh_of(2, 4))
    with subtests.test("unconstrained"), pytest.raises(ValueError):
        NamedSharding(mesh, Spec(Spec.UNCONSTRAINED))
    mixed = Mesh(auto.devices, ("x", "y"), axis_types=(auto.axis_types[0], mesh.axis_types[0]))
    assert NamedSharding(mixed, Spec(Spec.UNCONSTRAINED, "y")).spec[1] == "y"
    with subtests.test("axes of one entry"):
        kinds = type(auto.axis_types[0])
        within = jax.sharding.AbstractMesh(
            (2, 2, 2), ("x", "y", "z"), axis_types=(kinds.Manual, kinds.Auto, kinds.Explicit)
        )
        for entries in ((("y", "z"),), (("z", "y"), "x"), ("x", ("y",))):
            assert NamedSharding(within, Spec(*entries)).spec == Spec(*entries)
        pairs = ("x", "y"), ("y", "x"), ("x", "z"), ("z", "x")
        for pair in pairs if jax.__version_info__ < (0, 8) else ():  # newer JAX takes them
            with pytest.raises(ValueError, match="Manual"):
                NamedSharding(within, Spec(None, pair))
    if not hasattr(Spec("x"), "reduced"):
        return
    for kind in ("unreduced", "reduced"):
        with subtests.test(kind=kind):
            assert getattr(NamedSharding(mesh, Spec("x", **{kind: {"y"}})).spec, kind) == {"y"}
            for other, axes in ((auto, {"y"}), (mesh, {"z"}), (mixed, {"x"})):
                with pytest.raises(ValueError):
                    NamedSharding(other, Spec(**{kind: axes}))
