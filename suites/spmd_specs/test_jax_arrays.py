"""JAX's arrays on several devices: read, indexed, converted, copied, made of parts and deleted."""

from __future__ import annotations

import copy
import itertools
import math
import operator
import pickle
from collections.abc import Callable, Iterator
from inspect import signature
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding

from suites.shared.global_arrays import Spec, mesh_of
from suites.shared.jax_releases import since_0_5
from suites.spmd_specs.jax_layouts import check, part

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("8"),
    pytest.mark.upstream("jax-ml/jax#16816"),
    since_0_5,
]
needs_donation = pytest.mark.skipif(
    "may_alias" not in signature(jax.device_put).parameters,
    reason="device_put of this release of JAX neither donates nor copies",
)
VALUE = (np.arange(64).reshape(8, 8) * 37 % 61).astype(np.float32)
LAYOUTS = {"x": ("x", None), "xy": ("x", "y"), "yx": (None, ("y", "x")), "whole": (None, None)}


def placed() -> Iterator[tuple[str, Any]]:
    """Yield the value as an array on one device, and divided over all in each way."""
    yield "one", jax.device_put(VALUE, jax.devices()[5])
    for name, entries in LAYOUTS.items():
        yield name, jax.device_put(VALUE, NamedSharding(mesh_of(2, 4), Spec(*entries)))


INDICES: tuple[Any, ...] = (
    *(0, -1, (3, 5), slice(2, 7), (slice(None), 3), (slice(1, None, 3), slice(None, -2))),
    *(..., (..., 0), (None, 2), ([1, 6, 1],), (slice(None), [0, 7]), np.array([True, False] * 4)),
)


@pytest.mark.long
def test_read(subtests: pytest.Subtests) -> None:
    """As NumPy reads the whole value, however it is divided."""
    for name, array in placed():
        with subtests.test(name=name):
            assert (array.shape, array.ndim, array.size, array.dtype) == ((8, 8), 2, 64, "float32")
            assert (len(array), array.nbytes, array.itemsize) == (8, 256, 4)
            np.testing.assert_array_equal(np.asarray(array), VALUE)
            assert np.asarray(array).flags.writeable is False
            assert np.array(array, copy=True).flags.writeable
            assert np.asarray(array, np.int32).dtype == np.int32
            assert array.tolist() == VALUE.tolist()
            assert array.tobytes() == VALUE.tobytes()
            assert array.tobytes("F") == VALUE.tobytes("F")
            assert str(array) == str(VALUE)
            assert f"{array}" == f"{VALUE}"
            for got, row in zip(array, VALUE, strict=True):
                np.testing.assert_array_equal(got, row)
            for index in INDICES if name in ("one", "xy") else ():
                np.testing.assert_array_equal(array[index], VALUE[index], err_msg=str(index))
            again = pickle.loads(pickle.dumps(array))  # noqa: S301, of this file
            assert (type(again), again.dtype) == (type(array), array.dtype)
            for same in (again, copy.copy(array), copy.deepcopy(array), jax.device_get(array)):
                np.testing.assert_array_equal(same, VALUE)
            array.copy_to_host_async()
            assert array.block_until_ready() is array
            assert not array.weak_type
            with pytest.raises(TypeError):
                hash(array)
            with pytest.raises((TypeError, ValueError)):
                bool(array)


def test_parts(subtests: pytest.Subtests) -> None:
    """Which device has which part, and which of the same parts is the first."""
    mesh, sizes = mesh_of(2, 4), {"x": 2, "y": 4}
    for name, entries in {**LAYOUTS, "y": ("y", None)}.items():
        at = NamedSharding(mesh, Spec(*entries))
        array = jax.device_put(VALUE, at)
        seen: dict[str, list[int]] = {}
        with subtests.test(name=name):
            shards = {shard.device: shard for shard in array.addressable_shards}
            assert [shard.device for shard in array.global_shards] == list(mesh.devices.flat)
            for number, (place, device) in enumerate(np.ndenumerate(mesh.devices)):
                own = part(VALUE, entries, dict(zip("xy", place, strict=True)), sizes)
                shard = shards[device]
                np.testing.assert_array_equal(shard.data, own)
                np.testing.assert_array_equal(VALUE[shard.index], own)
                assert shard.data.devices() == {device}
                assert shard.data.sharding.is_equivalent_to(SingleDeviceSharding(device), 2)
                seen.setdefault(str(shard.index), []).append(shard.replica_id)
                data = array.addressable_data(number)
                np.testing.assert_array_equal(data, own)
            assert all(sorted(ids) == list(range(len(ids))) for ids in seen.values()), seen
            firsts = [shard for shard in shards.values() if shard.replica_id == 0]
            together = np.zeros_like(VALUE)
            for shard in firsts:
                together[shard.index] += np.asarray(shard.data)
            np.testing.assert_array_equal(together, VALUE)
            assert array.is_fully_replicated == (name == "whole")
            assert array.is_fully_addressable
            assert getattr(array, "committed", True)
            assert array.devices() == set(jax.devices())
            assert array.sharding == at
            assert array.device == at
            assert array.on_device_size_in_bytes() == 8 * math.prod(at.shard_shape((8, 8))) * 4
    with subtests.test("one"):
        (_, array), *_ = placed()
        assert (array.device, array.devices()) == (jax.devices()[5], {jax.devices()[5]})
        (shard,) = array.addressable_shards
        assert (shard.index, shard.replica_id) == ((slice(None), slice(None)), 0)
        assert not getattr(jnp.ones(3), "committed", False)


def test_scalars(subtests: pytest.Subtests) -> None:
    """A number on one device and on all of them, as Python's."""
    everywhere = NamedSharding(mesh_of(8), Spec())
    for number in (True, 5, -7, 2.5, 3 + 4j):
        for place in (jax.devices()[1], everywhere):
            scalar = jax.device_put(number, place)
            with subtests.test(number=number):
                assert scalar == number
                assert scalar.item() == number
                assert scalar.tolist() == number
                assert bool(scalar) is True
                assert complex(scalar) == number
                assert scalar.weak_type == (number is not True)
                if not isinstance(number, complex):
                    assert float(scalar) == number
                    assert int(scalar) == int(number)
                    assert format(scalar, ".2f") == format(number, ".2f")
                if type(number) is int:
                    assert list(range(9))[scalar] == number if number > 0 else True
                    assert operator.index(scalar) == number
                    assert (hex(scalar), oct(scalar)) == (hex(number), oct(number))
                    assert (scalar.__hex__(), scalar.__oct__()) == (hex(number), oct(number))
                for raises in (len, list):
                    with pytest.raises(TypeError):
                        raises(scalar)
    for function in (float, int, complex, operator.index):
        with subtests.test(function=function.__name__), pytest.raises(TypeError):
            function(jnp.arange(2.0))
        with subtests.test("of one element", function=function.__name__), pytest.raises(TypeError):
            function(jnp.ones(1))
    with subtests.test("nothing is not false"), pytest.raises((TypeError, ValueError)):
        bool(jnp.zeros(0))
    with subtests.test("no index"), pytest.raises(TypeError):
        operator.index(jnp.float32(2))


def test_deleted(subtests: pytest.Subtests) -> None:
    """Nothing of a deleted array can be read, and others keep their values."""
    uses: dict[str, Callable[[Any], Any]] = {
        "value": np.asarray,
        "item": lambda array: array[0],
        "computed": lambda array: array + 1,
        "shards": lambda array: array.addressable_shards[0].data + 1,
        "data": lambda array: array.addressable_data(0) + 1,
        "devices": lambda array: array.devices(),
        "device": lambda array: array.device,
        "ready": lambda array: array.block_until_ready(),
        "host": lambda array: array.copy_to_host_async(),
        "moved": lambda array: jax.device_put(array, jax.devices()[0]),
        "global": lambda array: array.global_shards,
    }
    for name, array in placed():
        other = array * 2
        assert not array.is_deleted()
        array.delete()
        array.delete()
        for use, function in uses.items():
            with subtests.test(name=name, use=use):
                assert array.is_deleted()
                with pytest.raises(RuntimeError, match="deleted"):
                    function(array)
        assert (array.shape, array.dtype, array.is_fully_addressable) == ((8, 8), "float32", True)
        np.testing.assert_array_equal(other, VALUE * 2)


def test_made_of_parts(subtests: pytest.Subtests) -> None:
    """From arrays on single devices, in any order, by a function of indices, and of local data."""
    mesh = mesh_of(2, 4)
    for name, entries in LAYOUTS.items():
        at = NamedSharding(mesh, Spec(*entries))
        pieces = [jax.device_put(VALUE[i], d) for d, i in at.devices_indices_map((8, 8)).items()]
        with subtests.test(name=name):
            for order in (pieces, pieces[::-1], pieces[3:] + pieces[:3]):
                made = jax.make_array_from_single_device_arrays((8, 8), at, order)
                check(made, VALUE, mesh, entries)
            seen: list[Any] = []

            def data(index: Any, seen: list[Any] = seen) -> Any:
                seen.append(index)
                return VALUE[index]

            check(jax.make_array_from_callback((8, 8), at, data), VALUE, mesh, entries)
            assert {str(index) for index in seen} == {
                str(index) for index in at.devices_indices_map((8, 8)).values()
            }
            local = jax.make_array_from_process_local_data(at, {"a": VALUE, "b": [VALUE * 2]})
            check(local["a"], VALUE, mesh, entries)
            check(local["b"][0], VALUE * 2, mesh, entries)
            whole = jax.make_array_from_process_local_data(at, VALUE, VALUE.shape)
            check(whole, VALUE, mesh, entries)
            of_arrays = jax.make_array_from_callback((8, 8), at, lambda i: jnp.asarray(VALUE[i]))
            check(of_arrays, VALUE, mesh, entries)
    at = NamedSharding(mesh, Spec("x", "y"))
    pieces = [jax.device_put(VALUE[i], d) for d, i in at.devices_indices_map((8, 8)).items()]
    whole = jax.device_put(VALUE, at)
    make = jax.make_array_from_single_device_arrays
    wrong: dict[str, Callable[[], Any]] = {
        "too few": lambda: make((8, 8), at, pieces[:-1]),
        "one twice": lambda: make((8, 8), at, [*pieces[:-1], pieces[0]]),
        "another size": lambda: make((16, 8), at, pieces),
        "another dtype": lambda: make((8, 8), at, [*pieces[:-1], pieces[-1].astype("int32")]),
        "a divided one": lambda: make((8, 8), at, [*pieces[:-1], whole]),
        "no list": lambda: make((8, 8), at, whole),
        "of a tracer": lambda: jax.jit(lambda v: make((8, 8), at, [v] * 8))(pieces[0]),
        "a part's size": lambda: jax.make_array_from_callback((8, 8), at, lambda _: VALUE),
        "no sharding": lambda: jax.make_array_from_callback((8, 8), "x", lambda i: VALUE[i]),
        "uneven": lambda: jax.make_array_from_callback((7, 8), at, lambda i: VALUE[i]),
        "global size": lambda: jax.make_array_from_process_local_data(at, VALUE, (16, 8)),
        "other devices": lambda: make(
            (8, 8),
            NamedSharding(Mesh(mesh.devices[:1], ("x", "y")), Spec(None, "y")),
            pieces[4:],
        ),
    }
    if jax.__version_info__ < (0, 7):
        del wrong["global size"]
    for name, operation in wrong.items():
        with subtests.test(wrong=name), pytest.raises((TypeError, ValueError)):
            operation()


def places() -> dict[str, Any]:
    """Return shardings over devices in several orders, over some of them, and over one."""
    mesh, back = mesh_of(2, 4), Mesh(mesh_of(2, 4).devices[::-1, ::-1], ("x", "y"))
    turned = Mesh(mesh_of(2, 4).devices.T, ("x", "y"))
    return {
        "one": SingleDeviceSharding(jax.devices()[3]),
        "rows": NamedSharding(mesh, Spec("x")),
        "both": NamedSharding(mesh, Spec("x", "y")),
        "back": NamedSharding(back, Spec("x", "y")),
        "turned": NamedSharding(turned, Spec(None, "x")),
        "whole": NamedSharding(mesh, Spec()),
        "whole back": NamedSharding(back, Spec()),
        "half": NamedSharding(Mesh(mesh.devices[1], ("z",)), Spec("z")),
    }


def entries_of(array: Any) -> np.ndarray:
    """Return the value of the parts of all devices, which their indices put together."""
    whole = np.full(array.shape, np.nan, np.float32)
    for shard in array.addressable_shards:
        whole[shard.index] = np.asarray(shard.data)
    return whole


@pytest.mark.long
def test_moved(subtests: pytest.Subtests) -> None:
    """Between devices in another order, some of them and one, copied, kept and given away."""
    for (start, source), (end, target) in itertools.product(places().items(), repeat=2):
        name = f"{start} to {end}"
        array = jax.device_put(VALUE, source)
        moved = jax.device_put(array, target)
        with subtests.test(move=name):
            assert moved.sharding == target
            np.testing.assert_array_equal(entries_of(moved), VALUE)
            assert {shard.device for shard in moved.addressable_shards} == target.device_set
            np.testing.assert_array_equal(entries_of(array), VALUE)
        if needs_donation.args[0]:
            continue
        with subtests.test("given away", move=name):
            given = jax.device_put(array, target, donate=True)
            np.testing.assert_array_equal(entries_of(given), VALUE)
        if start == end:
            copied = jax.device_put(array := jax.device_put(VALUE, source), target, may_alias=False)
            array.delete()
            with subtests.test("copied", move=name):
                np.testing.assert_array_equal(entries_of(copied), VALUE)


COPIES = {"to all": ("one", "whole"), "from all": ("whole", "one")}


@needs_donation
@pytest.mark.parametrize("name", COPIES)
def test_copied(name: str) -> None:
    """What may not share memory with an array is there when that array is deleted."""
    source, target = (places()[place] for place in COPIES[name])
    array = jax.device_put(VALUE, source)
    copied = jax.device_put(array, target, may_alias=False)
    assert copied.sharding == target
    array.delete()
    np.testing.assert_array_equal(entries_of(copied), VALUE)


def test_device_put(subtests: pytest.Subtests) -> None:
    """Trees of arrays to trees of places, and what can't be put there."""
    mesh, (first, second, *_) = mesh_of(2, 4), jax.devices()
    at = NamedSharding(mesh, Spec("x"))
    tree = {"a": VALUE, "b": [VALUE[0], 3.0], "c": (np.int8(4),)}
    with subtests.test("one place"):
        put = jax.device_put(tree, second)
        assert all(leaf.devices() == {second} for leaf in jax.tree.leaves(put))
        assert jax.tree.structure(put) == jax.tree.structure(tree)
    with subtests.test("a prefix"):
        put = jax.device_put(tree, {"a": at, "b": second, "c": (None,)})
        check(put["a"], VALUE, mesh, ("x", None))
        assert [leaf.devices() for leaf in put["b"]] == [{second}, {second}]
        assert put["c"][0].devices() == {first}
        assert (float(put["b"][1]), put["c"][0].dtype) == (3.0, "int8")
    with subtests.test("nowhere"):
        array = jax.device_put(VALUE, second)
        assert jax.device_put(array) is array
        assert jax.device_put(array, second).devices() == {second}
        assert jax.device_put(VALUE).devices() == {first}
    with subtests.test("donated of a tree"):
        given = {"kept": jax.device_put(VALUE, first), "gone": jax.device_put(VALUE + 1, first)}
        of = {} if needs_donation.args[0] else {"donate": {"kept": False, "gone": True}}
        put = jax.device_put(given, second, **of)
        np.testing.assert_array_equal(given["kept"], VALUE)
        np.testing.assert_array_equal(put["kept"], VALUE)
        np.testing.assert_array_equal(put["gone"], VALUE + 1)
    with subtests.test("with default"), jax.default_device(second):
        assert jax.device_put(VALUE).devices() == {second}
        assert jnp.zeros(3).devices() == {second}
    with subtests.test("in a step"):
        step = jax.jit(lambda v: jax.device_put(v * 2, at).sum(0))
        np.testing.assert_array_equal(step(VALUE), 2 * VALUE.sum(0))
    with subtests.test("differentiated"):
        gradient = jax.grad(lambda v: (jax.device_put(v, second) ** 2).sum())(jnp.asarray(VALUE))
        np.testing.assert_array_equal(gradient, 2 * VALUE)
        assert gradient.devices() == {first}
        mapped = jax.vmap(lambda row: jax.device_put(row, second).sum())(VALUE)
        np.testing.assert_array_equal(mapped, VALUE.sum(1))
    wrong: dict[str, Callable[[], Any]] = {
        "text": lambda: jax.device_put(VALUE, "x"),
        "an object": lambda: jax.device_put(object(), first),
        "both": lambda: jax.device_put(array, second, donate=True, may_alias=True),
        "a tree": lambda: jax.device_put(tree, {"a": at}),
        "uneven": lambda: jax.device_put(VALUE[:7], at),
    }
    for name, operation in wrong.items():
        with subtests.test(wrong=name), pytest.raises((TypeError, ValueError)):
            operation()


def test_donated_beside_others(subtests: pytest.Subtests) -> None:
    """What was named is given away, and nothing else, beside unused and static arguments."""

    def step(a: Any, unused: Any, n: int, tree: Any, *, last: Any) -> Any:
        del unused
        return a * n, jax.tree.map(lambda leaf: leaf + n, tree), last * n

    def arguments(place: Any) -> tuple[list[Any], dict[str, Any]]:
        a, b, c, d, e = (jax.device_put(VALUE + n, place) for n in range(5))
        return [a, b, 3, {"c": c, "d": d}], {"last": e}

    ways: dict[str, tuple[dict[str, Any], set[str]]] = {
        "nothing": ({}, set()),
        "first": ({"donate_argnums": 0}, {"a"}),
        "tree": ({"donate_argnums": (3,)}, {"c", "d"}),
        "by name": ({"donate_argnames": ("tree", "last")}, {"c", "d", "last"}),
        "all": ({"donate_argnums": (3, 0), "donate_argnames": "last"}, {"a", "c", "d", "last"}),
    }
    for place in (jax.devices()[2], NamedSharding(mesh_of(2, 4), Spec("x", "y"))):
        for name, (of, gone) in ways.items():
            (a, unused, n, tree), named = arguments(place)
            results = jax.jit(step, static_argnums=2, **of)(a, unused, n, tree, **named)
            given = {"a": a, "unused": unused, **tree, **named}
            with subtests.test(name=name, place=str(place)):
                assert {key for key, array in given.items() if array.is_deleted()} == gone
                first, after, last = results
                np.testing.assert_array_equal(first, VALUE * 3)
                np.testing.assert_array_equal(after["c"], VALUE + 5)
                np.testing.assert_array_equal(after["d"], VALUE + 6)
                np.testing.assert_array_equal(last, (VALUE + 4) * 3)
                np.testing.assert_array_equal(unused, VALUE + 1)
    for wrong in ({"donate_argnums": 2}, {"donate_argnums": 9}, {"donate_argnames": "nobody"}):
        (a, unused, n, tree), named = arguments(jax.devices()[0])
        with subtests.test(wrong=wrong), pytest.raises(ValueError):
            jax.jit(step, static_argnums=2, **wrong)(a, unused, n, tree, **named)
    with subtests.test("twice"):
        array = jax.device_put(VALUE, jax.devices()[0])
        with pytest.raises(Exception, match="onat"):
            np.asarray(jax.jit(lambda v, w: (v + 1, w + 1), donate_argnums=0)(array, array)[1])
    with subtests.test("names and numbers"), pytest.raises(ValueError):
        jax.jit(step, static_argnames="last", donate_argnames="last")
    with subtests.test("carried"):
        loop = jax.jit(lambda v: lax.fori_loop(0, 4, lambda _, u: u * 2, v), donate_argnums=(0,))
        array = jax.device_put(VALUE, NamedSharding(mesh_of(8), Spec("x")))
        np.testing.assert_array_equal(loop(array), VALUE * 16)
        assert array.is_deleted()


def test_many_rows(subtests: pytest.Subtests) -> None:
    """More rows than JAX reads at once, on one device, on each of them and divided."""
    mesh, second = mesh_of(2, 4), jax.devices()[1]
    places = {"one": second, "whole": NamedSharding(mesh, Spec())}
    for count in (1, 100, 101, 208):
        rows = np.arange(count * 3, dtype=np.float32).reshape(count, 3)
        for name, place in (
            places.items() if count < 208 else [("x", NamedSharding(mesh, Spec("x")))]
        ):
            with subtests.test(count=count, place=name):
                listed = list(jax.device_put(rows, place))
                assert [row.shape for row in listed] == [(3,)] * count
                np.testing.assert_array_equal(np.stack(listed), rows)
                if name == "one":
                    assert {device for row in listed for device in row.devices()} == {second}


def test_converted(subtests: pytest.Subtests) -> None:
    """To NumPy as a copy or without one, to bytes and back, and to libraries that share memory."""
    for name, array in placed():
        with subtests.test(name=name):
            own = np.array(array)
            own[0, 0] = 99
            np.testing.assert_array_equal(array, VALUE)
            assert np.asarray(array).base is np.asarray(array).base
            if np.lib.NumpyVersion(np.__version__) >= "2.0.0":
                assert np.asarray(array, copy=True).flags.writeable
                assert not np.asarray(array, copy=False).flags.writeable
                with pytest.raises(ValueError):
                    np.asarray(array, np.int32, copy=False)
            if array.devices().pop().platform == "tpu":
                with pytest.raises(BufferError):
                    array.__dlpack_device__()
                with pytest.raises((BufferError, RuntimeError)):
                    array.__dlpack__()
    for number in (2.0, 3, np.float32(2), np.int8(3)):
        with subtests.test(number=number):
            again = pickle.loads(pickle.dumps(jnp.asarray(number)))  # noqa: S301, of this file
            assert again.weak_type == (type(number) in (int, float))
            wide = "float32" if again.dtype == "float32" and not again.weak_type else "bfloat16"
            assert jnp.result_type(again, jnp.bfloat16) == wide


def test_shared_with_numpy(subtests: pytest.Subtests) -> None:
    """An array in the host's memory is read in place, or copied; one in two parts is refused."""
    jax.config.update("jax_num_cpu_devices", 2)
    hosts = jax.devices("cpu")
    array = jax.device_put(VALUE, hosts[0])
    own = array.unsafe_buffer_pointer()
    assert tuple(map(int, array.__dlpack_device__())) == (1, 0)
    shared = np.from_dlpack(array)
    np.testing.assert_array_equal(shared, VALUE)
    assert shared.__array_interface__["data"][0] == own
    assert not shared.flags.writeable
    if np.lib.NumpyVersion(np.__version__) >= "2.1.0":
        for copied in (False, True):
            with subtests.test(copied=copied):
                again = np.from_dlpack(array, device="cpu", copy=copied)
                np.testing.assert_array_equal(again, VALUE)
                assert (again.__array_interface__["data"][0] != own) == copied
    divided = jax.device_put(VALUE, NamedSharding(Mesh(np.array(hosts), ("x",)), Spec("x")))
    for use in (
        np.from_dlpack,
        lambda each: each.__dlpack__(),
        lambda each: each.__dlpack_device__(),
    ):
        with subtests.test("two parts"), pytest.raises(BufferError):
            use(divided)


def test_unpickled_numbers() -> None:
    """A number of Python that was pickled stays one, and sums of other numbers are as before."""
    ones = jnp.ones(2, "bfloat16")
    number = pickle.loads(pickle.dumps(jnp.asarray(2.0)))  # noqa: S301, of this file
    assert (number + ones).dtype == "bfloat16"
    assert (jnp.asarray(np.float32(2)) + ones).dtype == "float32"
