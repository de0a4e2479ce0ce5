"""JAX's global arrays in a job: made of local data, read, donated, and in programs of a few."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding

from harness.model.topology import Topology
from suites.shared.global_arrays import (
    Parts,
    Spec,
    mesh_of,
    mesh_of_devices,
    on_each_device,
    on_ranks,
    parts,
    run_jax_ranks,
    spread,
)
from suites.shared.jax_releases import since_0_5, until_0_8

pytestmark = [pytest.mark.lanes("virtual-*"), pytest.mark.upstream("jax-ml/jax#16816")]


def _value(rows: int) -> np.ndarray:
    return np.random.default_rng(5).integers(-600, 600, (rows, 3)).astype(np.float32)


@pytest.mark.topologies("4@chip", "8@host", "2x4@chip", "2x4@slice")
def test_identity(topology: Topology) -> None:
    """Each process addresses its own devices, of its own slice, and sees the others'."""

    def rank(_: int) -> tuple[int, int, list[int], list[int], list[int]]:
        devices, own = jax.devices(), jax.local_devices()
        slices = [getattr(device, "slice_index", 0) for device in own]
        owners = [device.process_index for device in devices]
        return jax.process_index(), jax.process_count(), [d.id for d in own], slices, owners

    count, total = topology.process_count, topology.total
    each = total // count
    for number, (index, processes, own, slices, owners) in enumerate(run_jax_ranks(rank, topology)):
        assert (index, processes) == (number, count)
        assert own == list(range(number * each, (number + 1) * each))
        if topology.slices > 1:
            assert slices == [device // topology.devices for device in own]
        assert owners == [device // each for device in range(total)]


@pytest.mark.topologies("4@chip", "8@host", "2x4@slice")
def test_from_local_data(topology: Topology) -> None:
    """Each process gives its own rows; what it can't address, it can't read."""
    value, count = _value(2 * topology.total), topology.process_count

    def rank(number: int) -> dict[str, Parts]:
        sharding = NamedSharding(mesh_of(topology.total), Spec("x"))
        rows = np.split(value, count)[number]
        array = jax.make_array_from_process_local_data(sharding, rows)
        assert array.shape == value.shape
        assert not array.is_fully_addressable
        with pytest.raises(RuntimeError, match="non-addressable"):
            np.asarray(array)
        pieces = np.split(rows, len(jax.local_devices()))
        placed = [
            jax.device_put(*placement)
            for placement in zip(pieces, jax.local_devices(), strict=True)
        ]
        single = jax.make_array_from_single_device_arrays(value.shape, sharding, placed)
        whole = jax.jit(lambda x: x, out_shardings=NamedSharding(sharding.mesh, Spec()))(array)
        np.testing.assert_array_equal(np.asarray(whole), value)
        return {"local": parts(array), "single": parts(single)}

    for name, joined in on_ranks(rank, topology).items():
        np.testing.assert_array_equal(np.concatenate(joined), value, err_msg=name)


@pytest.mark.skipif(
    jax.__version_info__ < (0, 7),
    reason="JAX before 0.7 makes no array of which a process has none",
)
@pytest.mark.topologies("8@host")
def test_parts_of_other_processes(topology: Topology, subtests: pytest.Subtests) -> None:
    """A process sees which parts of an array others have; it may have none, and reads none."""
    value, first, second = _value(8), [0, 1, 2, 3], [4, 5, 6, 7]

    def refused(error: type[Exception], operation: Callable[[], Any]) -> bool:
        try:
            operation()
        except error:
            return True
        return False

    def rank(number: int) -> dict[str, Any]:
        here = NamedSharding(mesh_of_devices((first, second)[number]), Spec("x"))
        there = NamedSharding(mesh_of_devices((second, first)[number]), Spec("x"))
        everywhere = NamedSharding(there.mesh, Spec())
        of_index, of_parts = jax.make_array_from_callback, jax.make_array_from_single_device_arrays
        shape, float32 = value.shape, np.float32
        read: list[Any] = []
        nothing = of_index(shape, there, read.append, dtype=float32)
        same = of_parts(shape, there, [], dtype=float32)
        spread_out = spread(value, mesh_of(8), Spec("x"))
        whole = spread(value, mesh_of(8), Spec())
        shards = {shard.device.id: shard for shard in spread_out.global_shards}
        own = dict(zip("ab", (value[:4], value[4:]), strict=True))
        at = {"a": spread_out.sharding, "b": here}
        tree = jax.make_array_from_process_local_data(
            at, own, {"a": (8, 3) if number == 0 else None, "b": None}
        )
        return {
            "nothing": (nothing.shape, nothing.addressable_shards, read) == (shape, [], []),
            "of no parts": (same.shape, same.dtype, same.addressable_shards) == (shape, "f4", []),
            "addressable": [
                (at.is_fully_addressable, len(at.addressable_devices)) for at in (here, there)
            ]
            == [(True, 4), (False, 0)],
            "one device": [
                jax.sharding.SingleDeviceSharding(jax.devices()[n]).is_fully_addressable
                for n in (first[0], second[0])
            ]
            == [number == 0, number == 1],
            "whose parts": [n for n, shard in sorted(shards.items()) if shard.data is not None]
            == [d.id for d in jax.local_devices()],
            "which parts": all(
                np.array_equal(value[shard.index], value[n : n + 1]) and shard.replica_id == 0
                for n, shard in shards.items()
            ),
            "rows": np.array_equal(np.stack(list(whole)), value),
            "a part": np.array_equal(whole.addressable_data(2), value),
            "a tree": all(
                np.array_equal(part, own["a"][n % 4 : n % 4 + 1])
                for n, part in parts(tree["a"]).items()
            )
            and np.array_equal(tree["b"], own["b"]),
            "no dtype": refused(ValueError, lambda: of_index(shape, there, read.append)),
            "no dtype of parts": refused(ValueError, lambda: of_parts(shape, there, [])),
            "not read": all(
                refused(RuntimeError, partial(np.asarray, array))
                for array in (
                    nothing,
                    spread_out,
                    of_index(shape, everywhere, value.__getitem__, float32),
                )
            ),
            "no rows": refused(AssertionError, lambda: list(spread_out)),
            "closed over": refused(RuntimeError, jax.jit(lambda: spread_out + 1)),
            "no such shape": refused(
                ValueError,
                lambda: jax.make_array_from_process_local_data(here, value, (None, 3)),
            ),
        }

    for number, right in enumerate(run_jax_ranks(rank, topology)):
        with subtests.test(rank=number):
            assert [name for name, is_right in right.items() if not is_right] == []


@since_0_5
@until_0_8
@pytest.mark.upstream("jax-ml/jax#1703")
@pytest.mark.topologies("8@host")
def test_mapped(topology: Topology, subtests: pytest.Subtests) -> None:
    """A map goes over all processes' devices; each process gives and gets its own rows."""
    value = _value(8)
    rows = {"all": range(8), "of a size": range(8), "listed": [0, 4, 1, 2]}

    def centred(v: Any) -> Any:
        return v - lax.psum(v, "i") * lax.axis_index("i")

    def rank(number: int) -> dict[str, Any]:
        own, devices = value[4 * number :][:4], jax.devices()
        few = [devices[n] for n in (0, 5, 1, 2)]
        own_few = own[: 1 if number else 3]
        results: dict[str, Any] = {
            "all": jax.pmap(centred, "i")(own),
            "of a size": jax.pmap(centred, "i", axis_size=8)(own),
            "listed": jax.pmap(centred, "i", devices=few)(own_few),
        }
        wrong: dict[str, Callable[[], Any]] = {
            "local devices if no": lambda: jax.pmap(centred, "i")(own[:2]),
            "local devices passed": lambda: jax.pmap(centred, "i", devices=devices)(own[:2]),
            "inner_pmap must specify": lambda: jax.pmap(
                jax.pmap(centred, "i"), "j", devices=devices
            )(own.reshape(2, 2, 3)),
            "jit of multi-host pmap": lambda: jax.jit(jax.pmap(centred, "i"))(own),
        }
        for text, operation in wrong.items():
            with pytest.raises((NotImplementedError, ValueError), match=text):
                operation()
        return {name: np.asarray(result) for name, result in results.items()}

    ranks = run_jax_ranks(rank, topology)
    for name, of in rows.items():
        places = np.arange(len(of))[:, None]
        expected = value[list(of)] - value[list(of)].sum(0) * places
        for number, results in enumerate(ranks):
            own = [place for place, row in enumerate(of) if row // 4 == number]
            with subtests.test(name=name, rank=number):
                np.testing.assert_array_equal(results[name], expected[own])


@pytest.mark.topologies("4@chip", "2x4@slice")
def test_donated(topology: Topology) -> None:
    """A donated array is gone at once, and the steps that followed had its value."""
    value = _value(topology.total)

    def rank(_: int) -> dict[str, Parts]:
        mesh = mesh_of(topology.total)
        step = jax.jit(
            lambda x, y: (x + y.sum(0), y * 2),
            donate_argnums=(0,),
            out_shardings=(NamedSharding(mesh, Spec("x")), NamedSharding(mesh, Spec("x"))),
        )
        x, y = (spread(value, mesh, Spec("x")) for _ in range(2))
        for _ in range(4):
            before, kept = x, y
            x, y = step(x, y)
            assert before.is_deleted()
            assert not kept.is_deleted()
        return {"x": parts(x), "y": parts(y)}

    results = on_ranks(rank, topology)
    x = y = value
    for _ in range(4):
        x, y = x + y.sum(0), y * 2
    np.testing.assert_array_equal(np.concatenate(results["x"]), x)
    np.testing.assert_array_equal(np.concatenate(results["y"]), y)


@pytest.mark.long
@pytest.mark.topologies("4@chip")
def test_subsets_of_processes(topology: Topology) -> None:
    """Two halves at a time, the middle, and all: who has no part of a program does not wait."""
    meshes = {"first": [0, 1], "second": [3, 2], "middle": [1, 2], "all": [0, 1, 2, 3]}
    value = _value(12)

    def rank(_: int) -> dict[str, Any]:
        own = jax.local_devices()[0].id
        waits = {}
        for name in ("first", "second", "middle", "all", "first", "middle"):
            if own in meshes[name]:
                mesh = mesh_of_devices(meshes[name])
                program = on_each_device(lambda x: lax.cumsum(lax.psum(x, "x")), mesh, Spec("x"))
                waits[name] = program(spread(value, mesh, Spec("x")))
        return {name: parts(array)[own] for name, array in waits.items()}

    for number, sums in enumerate(run_jax_ranks(rank, topology)):
        assert sorted(sums) == sorted(n for n, devices in meshes.items() if number in devices)
        for name, part in sums.items():
            summed = np.sum(np.split(value, len(meshes[name])), 0)
            np.testing.assert_array_equal(part, np.cumsum(summed, 0), err_msg=name)


@pytest.mark.topologies("8@host", "2x4@slice")
def test_one_device_of_each_process(topology: Topology) -> None:
    """A program on some of a process's devices, beside its own on the others."""
    value, each = _value(8), topology.total // topology.process_count

    def rank(number: int) -> tuple[np.ndarray, np.ndarray]:
        chosen = [process * each for process in range(topology.process_count)]
        mesh = mesh_of_devices(chosen)
        program = on_each_device(lambda x: lax.psum(x, "x"), mesh, Spec("x"))
        alone = jax.device_put(value + number, jax.local_devices()[1])
        summed = program(spread(value, mesh, Spec("x")))
        (part,) = parts(summed).values()
        return part, np.asarray(jnp.sqrt(alone * alone))

    for number, (summed, alone) in enumerate(run_jax_ranks(rank, topology)):
        np.testing.assert_array_equal(summed, np.sum(np.split(value, topology.process_count), 0))
        np.testing.assert_array_equal(alone, np.abs(value + number))


@pytest.mark.topologies("4@chip", "2x4@slice")
def test_many_in_flight(topology: Topology) -> None:
    """Forty programs on their way, of two chains that share the devices, before one is read."""
    value, steps = _value(2 * topology.total), 20

    def rank(_: int) -> dict[str, Parts]:
        mesh = mesh_of(topology.total)
        roll = jax.jit(lambda v: jnp.roll(v, 1, 0), out_shardings=NamedSharding(mesh, Spec("x")))
        swap = on_each_device(lambda v: lax.pmax(v, "x") - v, mesh, Spec("x"))
        rolled = swapped = spread(value, mesh, Spec("x"))
        for _ in range(steps):
            rolled, swapped = roll(rolled), swap(swapped)
        return {"rolled": parts(rolled), "swapped": parts(swapped)}

    results = on_ranks(rank, topology)
    np.testing.assert_array_equal(np.concatenate(results["rolled"]), np.roll(value, steps, 0))
    swapped = np.stack(np.split(value, topology.total))
    for _ in range(steps):
        swapped = swapped.max(0) - swapped
    np.testing.assert_array_equal(np.stack(results["swapped"]), swapped)


@pytest.mark.topologies("8@host")
def test_training_step(topology: Topology) -> None:
    """Three steps of gradient descent over a mesh of data and model, beside NumPy."""
    random = np.random.default_rng(7)
    x, w, y = (random.standard_normal(shape) for shape in ((16, 6), (6, 8), (16, 8)))

    def rank(_: int) -> tuple[list[float], np.ndarray]:
        mesh = mesh_of(2, topology.total // 2)

        def loss(w: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
            return jnp.square(jnp.tanh(x @ w) - y).mean()

        @jax.jit
        def step(w: jax.Array, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
            value, gradient = jax.value_and_grad(loss)(w, x, y)
            return value, w - gradient

        weights = spread(w.astype(np.float32), mesh, Spec(None, "y"))
        inputs = spread(x.astype(np.float32), mesh, Spec("x"))
        targets = spread(y.astype(np.float32), mesh, Spec("x", "y"))
        losses = []
        for _ in range(3):
            value, weights = step(weights, inputs, targets)
            losses.append(float(value))
        whole = jax.jit(lambda w: w, out_shardings=NamedSharding(mesh, Spec()))(weights)
        return losses, np.asarray(whole)

    ranks, expected = run_jax_ranks(rank, topology), []
    for _ in range(3):
        out = np.tanh(x @ w)
        expected.append(np.square(out - y).mean())
        w = w - x.T @ (2 * (out - y) / y.size * (1 - out * out))
    for losses, weights in ranks:
        np.testing.assert_allclose(losses, expected, rtol=1e-5)
        np.testing.assert_allclose(weights, w, rtol=1e-5, atol=1e-6)
